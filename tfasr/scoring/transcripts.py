"""Files of references and hypotheses, an utterance a line: our own and other toolkits'."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tfasr.alphabet import normalise
from tfasr.errors import UsageError

_NAMED = 3


@dataclass(frozen=True)
class Transcript:
    """What was said in an utterance and what was heard."""

    id: str  # unique within its file
    reference: str  # normalised, see `tfasr.alphabet.normalise`
    hypothesis: str  # normalised too, so that other toolkits' spelling of case does not count
    speaker: str = ""  # "" where unknown


def read_transcripts(path: str | Path) -> list[Transcript]:
    """Reads hypotheses that tfasr wrote, or a manifest of NeMo's with its predictions.

    A line of ours has ``id, reference, hypothesis`` and may have ``speaker``; one of NeMo's has
    ``text, pred_text`` and ``audio_filepath``, which is the id.

    Raises:
        UsageError: if a line is neither, an id stands twice, or there is no line at all.
    """
    path = Path(path)
    transcripts = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"A file of hypotheses must be text. {path} is not: {error}.") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            transcripts.append(_transcript(line, f"line {number} of {path}"))
    repeated = [
        key for key, n in Counter(transcript.id for transcript in transcripts).items() if n > 1
    ]
    if repeated or not transcripts:
        what = f"{_some(repeated)} more than once" if repeated else "no line"
        raise UsageError(f"{path} must hold each utterance once. Received: {what}.")
    return transcripts


def matched(
    first: Sequence[Transcript], other: Sequence[Transcript]
) -> list[tuple[Transcript, Transcript]]:
    """Returns pairs of the same utterance, in the order of ``first``.

    Ids that are paths are compared whole, then, where that does not fit, by the file's name.

    Raises:
        UsageError: if the two are not over the same utterances with the same references; it says
            how many differ and names some.
    """
    for key in (str, _stem):
        own = {key(transcript.id): transcript for transcript in first}
        theirs = {key(transcript.id): transcript for transcript in other}
        if own.keys() == theirs.keys() and len(own) == len(first) and len(theirs) == len(other):
            pairs = [(transcript, theirs[name]) for name, transcript in own.items()]
            _check_references(pairs)
            return pairs
    missing = sorted(
        {transcript.id for transcript in first} - {transcript.id for transcript in other}
    )
    more = sorted({transcript.id for transcript in other} - {transcript.id for transcript in first})
    raise UsageError(
        "Two systems must be compared over the same utterances. Received: "
        f"{len(first)} and {len(other)}; {_count(missing)} only in the first, "
        f"{_count(more)} only in the second."
    )


def _check_references(pairs: Sequence[tuple[Transcript, Transcript]]) -> None:
    unlike = [(a, b) for a, b in pairs if a.reference != b.reference]
    if unlike:
        shown = "; ".join(
            f"{a.id}: {a.reference!r}, here {b.reference!r}" for a, b in unlike[:_NAMED]
        )
        more = "; and more" if len(unlike) > _NAMED else ""
        raise UsageError(
            "Two systems must be compared over the same references. Received: "
            f"{len(unlike)} of {len(pairs)} that differ ({shown}{more})."
        )


def _transcript(line: str, where: str) -> Transcript:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    for names in (("id", "reference", "hypothesis"), ("audio_filepath", "text", "pred_text")):
        if isinstance(fields, dict) and all(isinstance(fields.get(n), str) for n in names):
            identity, reference, hypothesis = (fields[name] for name in names)
            speaker = _speaker(fields)
            return Transcript(identity, normalise(reference), normalise(hypothesis), speaker)
    raise UsageError(
        "A line of hypotheses must be a JSON object with id, reference and hypothesis, or with "
        f"audio_filepath, text and pred_text. Received: {line[:60]!r} in {where}. "
        "tfasr evaluate --hypotheses writes such files."
    )


def _speaker(fields: dict[str, Any]) -> str:
    speaker = fields.get("speaker")
    return "" if speaker is None else str(speaker)


def _stem(identity: str) -> str:
    return PurePosixPath(identity.replace("\\", "/")).stem


def _count(ids: Sequence[str]) -> str:
    return f"{len(ids)} ({_some(ids)})" if ids else "none"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED]) + (", ..." if len(ids) > _NAMED else "")
