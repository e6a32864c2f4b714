"""Records: a challenger that reaches a track's target sooner becomes the new record.

A track sets data, a target and its rule. `record` trains the reigning recipe and its
challenger in turns, as a study, and writes a submission, a folder that
`verify_submission` checks on any machine (docs/records.md):

- ``submission.json``: the outcome, and the SHA-256 of every other file
- ``track.gin``: the track as it was then
- ``study.tar.xz``: the study, without checkpoints
- ``plugins/``, ``code.diff``, ``environment.txt``: the code and packages that trained
- ``card.md`` and ``card.json``: a training-time card
"""

import importlib.metadata
import io
import json
import lzma
import math
import re
import subprocess
import tarfile
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from types import NoneType
from typing import IO, Any

from tfasr._version import __version__
from tfasr.data.manifest import file_sha256, read_index, read_manifest
from tfasr.display.table import markdown_text
from tfasr.errors import UsageError, did_you_mean
from tfasr.kit.config import config_class, require
from tfasr.kit.files import (
    GIN_GIVEN_FILE,
    SUBMISSION_FILE,
    check_owned,
    make_folder,
    opened,
    read_bytes,
    read_object,
    read_text,
    write_whole,
)
from tfasr.kit.gin import fill, make, presets_folder, read_evidence, statements
from tfasr.kit.registry import plugins
from tfasr.ledger.declared import STARTS_FILE, canonical, check_study, code_hash, sha256
from tfasr.ledger.events import chain_of, read_events
from tfasr.ledger.intervals import INTERVALS
from tfasr.reports.write import CARD, CARD_JSON, report
from tfasr.scoring.errors import read_transcripts
from tfasr.studies.perform import decision, decision_text, study
from tfasr.studies.plan import Plan, StudyConfig, plan_of
from tfasr.studies.verify import verify_study
from tfasr.tta.comparison import LOOKS
from tfasr.tta.host import host_use, read_host_file
from tfasr.tta.policies import WINDOW
from tfasr.tta.run import Run, load_run
from tfasr.verifying.form import must
from tfasr.verifying.run import (
    Check,
    judged,
    plain_files,
    references_hash,
    shards_hash,
)

# The two experiments of a race's study.
REIGNING = "reigning"
CHALLENGER = "challenger"

# A submission's study, without what `_LEFT_OUT` names, and its track.
STUDY_FILE = "study.tar.xz"
TRACK_FILE = "track.gin"

# Files and folders of a study that no check of a submission needs, and that are large
# or say more about the machine than a stranger has to know.
_LEFT_OUT = {
    "checkpoints",
    "logs",
    "corpus",
    "shards",
    "report",
    "at_work",
    "lock",
    "cpu.csv",
    "gpu.csv",
    "heartbeat",
    "progress.json",
}

# Facts of a run's system, and conditions of each of its processes, that decide its
# speed: all runs of a race must have the same.
_SAME = (
    "host",
    "processor",
    "cores",
    "memory_bytes",
    "gpus",
    "python",
    "packages",
    "platform",
)
_SAME_CONDITIONS = (
    "environment",
    "affinity",
    "governors",
    "threads",
    "nice",
    "cpu_limit",
)

# The rules of a race, in the order of their checks: `_Race.check_track` and so on.
RULES = (
    "track",
    "rules",
    "seeds",
    "turns",
    "machine",
    "against",
    "verdict",
    "load",
    "leaks",
    "data",
)

# Printed after a verification, as `verify.UNCHECKED_OF_RUNS` is.
UNCHECKED_OF_SUBMISSIONS = (
    "that the machine and its software are those that are named",
    "work of many races that were never published",
    "transcripts that the code holds in an encoded form",
    "how noisy evaluations are",
)

# What may differ between the two sides although it makes runs incomparable elsewhere:
# recipes of an open division may differ in batch normalisation, for example.
_NOT_COMPARED = ("hash", "batch_statistics", "division")

# Enough for the last look of the sequential test.
_NUMBER_OF_SEEDS = LOOKS[-1]

# Validation transcripts of so many or more words must not be in the code. Shorter ones
# may be there by chance.
_TELLTALE_WORDS = 3

# Nor may so many of their words of over 3 letters, if that is over so large a share of
# them: single words may be there by chance.
_VOCABULARY = 30
_VOCABULARY_SHARE = 0.5

# How much of a verdict's gap other load, pauses or starts may explain.
SHARE_OF_GAP = 0.25

# The largest part of a run for which samples of load may be missing.
_MOST_UNKNOWN = 0.2

# How the race's own gin files and the table of records begin. Files that begin otherwise
# are someone else's, and are not overwritten.
_OURS = "# Written by tfasr record. "
_TABLE_BEGINS = "# Records\n\n`tfasr record --table` writes this page"

# Limits for files of a submission: many times what honest ones need.
_MOST_TEXT_BYTES = 4 << 20
_MOST_STUDY_BYTES = 1 << 30
_MOST_MEMBER_BYTES = 128 << 20

# Text is compressed to a tenth, at most to a fortieth: an archive that unpacks to more
# than 200 times its size is a bomb.
_MOST_RATIO = 200


@config_class
class TrackConfig:
    """What the reigning record and its challenger share: data, target, and what is compared.

    Its fields are the rules of a race, which a track's gin file declares.
    """

    title: str = ""  # the heading in the table of records
    corpus: str = ""  # "synthetic" makes the demo's speech; "" needs ``--shard_dir``
    training: str = ""  # the hash of the training split's ids and transcripts
    validation: str = ""  # the hash of the validation split's ids and transcripts
    metric: str = "cer"  # the target's error rate
    target: float = 0.1  # a fraction
    window: int = WINDOW  # the number of evaluations whose median must meet the target
    decoder: str = "greedy"  # decodes the evaluations
    division: str = "open"  # "closed" allows only the paper's model and optimizer
    # what is compared: "seconds" (runs take turns on one machine) or "utterances" (any
    # machine)
    kind: str = "seconds"
    policy: str = "paper"  # how seconds are counted if the kind is "seconds"
    # the largest probability of a verdict between equally fast recipes
    level: float = 0.01
    # the budget of every run: one that misses the target within it has failed
    epochs: int = 60
    baseline: tuple[str, ...] = ()  # presets to beat until there is a record
    # hash of their gin statements: shows whether a preset has changed
    baseline_hash: str = ""

    def check(self) -> None:
        """Raises ValueError for an unknown kind or division, or without a baseline."""
        require(
            self.kind in ("seconds", "utterances"),
            self,
            "kind",
            "'seconds' or 'utterances'",
        )
        require(
            self.division in ("open", "closed"), self, "division", "'open' or 'closed'"
        )
        require(bool(self.baseline), self, "baseline", "at least one preset")

    @property
    def bindings(self) -> list[str]:
        """Bindings that both sides train with, after their own, which they override.

        Whatever could make a run end at another time, or be measured less often, is set
        here.
        """
        return [
            f"TrainingConfig.targets = [({self.metric!r}, {self.target!r})]",
            f"TrainingConfig.target_window = {self.window}",
            f"TrainingConfig.epochs = {self.epochs}",
            "TrainingConfig.stop_after_hours = 0.0",
            "TrainingConfig.give_up_after_hours = 0.0",
            "TrainingConfig.evaluation_utterances = 0",
            "TrainingConfig.stop_at_targets = True",
            "TrainingConfig.second_decoder = ''",
            f"DecoderConfig.name = {self.decoder!r}",
        ]

    @property
    def clock(self) -> str:
        """The clock of the race's study: a policy, or "utterances"."""
        if self.kind == "seconds":
            return self.policy

        return self.kind


def tracks(records: Path) -> dict[str, Path]:
    """Returns the files of tfasr's tracks, and of those that a folder of records adds.

    A shipped track can't be replaced by a file of the same name.
    """
    added = {path.parent.name: path for path in records.glob(f"*/{TRACK_FILE}")}
    shipped = {path.stem: path for path in (presets_folder() / "track").glob("*.gin")}

    return dict(sorted({**added, **shipped}.items()))


def load_track(name: str, records: Path) -> TrackConfig:
    """Reads a track that comes with tfasr or that ``--records`` has.

    Args:
        name: the track's, such as "synthetic_cer_10".
        records: the folder of accepted submissions, and of further tracks.

    Raises:
        UsageError: if there is no such track, or if its baseline leaves its folder.
    """
    by_name = tracks(records)
    if name not in by_name:
        remedy = did_you_mean(name, by_name, f"Tracks: {', '.join(by_name)}.")
        raise UsageError(f"A record needs a track. Received: {name!r}.{remedy}")

    # Anyone may have written it: reading it imports nothing and includes no other file.
    text = read_evidence(by_name[name])
    config = fill(text, partial(make, TrackConfig), imports=False).configs

    for file in config.baseline:
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise UsageError(
                "A track's baseline must name presets, or files in the track's folder. "
                f"Received: {file!r} in {by_name[name]}."
            )

    # A track in --records may have its baseline's presets in its own folder.
    baseline = []
    for file in config.baseline:
        near = by_name[name].parent / file
        if near.is_file():
            file = str(near)

        baseline.append(file)

    return replace(config, baseline=tuple(baseline))


def statements_hash(texts: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that change with any statement or their order."""
    return sha256(canonical(list(texts)))[:16]


def submissions(records: Path, track: str) -> list[dict[str, Any]]:
    """Returns a track's accepted submissions, oldest first, each with its folder.

    Folders begin with a number (docs/records.md), so the order of names is that of
    time.

    Args:
        records: the folder of accepted submissions.
        track: the track's name.

    Raises:
        UsageError: if one of them states something else than `record` writes.
    """
    files = sorted((records / track).glob(f"*/{SUBMISSION_FILE}"))
    return [{**_stated(path), "folder": path.parent.name} for path in files]


# The fields of submission.json. Ratio and interval are null if too few runs met the
# target.
_STATED = {
    "track": str,
    "tfasr": str,
    "against": str,
    "verdict": str,
    "decision": str,
    "runs": int,
    "ratio": (float, int, NoneType),
    "interval": (list, NoneType),
    "statements": list,
    "study": str,
    "files": dict,
}

# A line's hash in a list of starts.
_HASH = re.compile(r"[0-9a-f]{32}")

# For the challenger: it is faster, slower, or neither could be shown.
_VERDICTS = ("record", "refuted", "undecided")


def _stated(path: Path) -> dict[str, Any]:
    """Reads a submission.json and checks each field's type and form."""
    stated = read_object(
        path, "Restore it from a copy.", tuple(_STATED), _MOST_TEXT_BYTES
    )
    for name, kinds in _STATED.items():
        value = stated[name]
        must(
            isinstance(value, kinds) and value is not True,
            f"{path} has {name} = {value!r:.60}",
        )

    ratio = stated["ratio"]
    interval = stated["interval"]
    must(ratio is None or _positive(ratio), f"{path} has the ratio {ratio!r:.60}")
    ends = interval is None or (len(interval) == 2 and all(map(_positive, interval)))
    must(ends, f"{path} has the interval {interval!r:.60}")
    texts = [*stated["statements"], *stated["files"].values()]
    must(
        all(isinstance(text, str) for text in texts),
        f"{path} has statements that are no text",
    )
    must(_HASH.fullmatch(stated["study"]) is not None, f"{path} has no hash of a study")
    must(
        stated["verdict"] in _VERDICTS,
        f"{path} has the verdict {stated['verdict']!r:.60}",
    )

    return stated


def _positive(number: Any) -> bool:
    """Whether a value is a positive, finite number and no bool."""
    return type(number) in (int, float) and 0 < number < math.inf


def _reigning(
    track: TrackConfig, earlier: Sequence[dict[str, Any]]
) -> tuple[str, list[str]]:
    """Returns the hash of the reigning submission, and its statements.

    The hash is "" for the baseline, which reigns until there is a record.

    Args:
        track: which names the baseline.
        earlier: the track's accepted submissions, oldest first.

    Raises:
        UsageError: if a preset of the baseline has changed since the track was declared.
    """
    records = [each for each in earlier if each["verdict"] == "record"]
    if records:
        return records[-1]["study"], list(records[-1]["statements"])

    texts = statements(track.baseline)
    if statements_hash(texts) != track.baseline_hash:
        raise UsageError(
            f"The baseline {', '.join(track.baseline)} has the hash "
            f"{statements_hash(texts)}, but the track was declared with "
            f"{track.baseline_hash}: the preset has changed since."
        )

    return "", texts


def record(
    name: str,
    gin_files: Sequence[str],
    *,
    run_dir: Path,
    shard_dir: Path | None = None,
    bindings: Sequence[str] = (),
    records: Path = Path("records"),
    resume: bool = False,
) -> Path:
    """Trains the reigning record and a challenger in turns.

    Args:
        name: the track.
        gin_files: the challenger's recipe, as for ``tfasr train``.
        run_dir: gets the study and the submission.
        shard_dir: prepared splits; None if the track makes its own speech.
        bindings: lines of gin that override the challenger's files.
        records: the folder of accepted submissions, and of further tracks.
        resume: continues a race of the same recipe, track and code.

    Returns:
        The submission's folder.

    Raises:
        UsageError: if the track, a preset or the folder is wrong.
        RunError: if a training failed.
    """
    track = load_track(name, records)
    against, reigning = _reigning(track, submissions(records, name))
    folder = run_dir / "study"
    out = run_dir / "submission"
    own_statements = statements(gin_files, bindings)

    # The folder may be new, or that of this race: other files are not overwritten.
    race = run_dir / "race.gin"
    written = (folder.name, out.name, race.name, f"{REIGNING}.gin")
    owned = race.is_file() and read_bytes(race).startswith(_OURS.encode())
    check_owned(
        run_dir, "--run_dir", f"{race.name} of tfasr record", written, owned=owned
    )

    # The baseline stays in its own files: a binding that a later file leaves unused is
    # dropped, but in a single file it would be an error.
    reigning_files = track.baseline
    if against:
        reigning_files = (f"{REIGNING}.gin",)

    plugged = [plugin.sha256 for plugin in plugins()]
    seeds = seeds_of(name, reigning, own_statements, code_hash(), plugged)
    last = tuple(track.bindings)
    lines = [
        f"{_OURS}Track: {name}",
        f"StudyConfig.title = {track.title!r}",
        f"StudyConfig.experiments = ({REIGNING!r}, {CHALLENGER!r})",
        f"StudyConfig.seeds = {seeds!r}",
        f"StudyConfig.corpus = {track.corpus if shard_dir is None else ''!r}",
        f"StudyConfig.policy = {track.clock!r}",
        f"StudyConfig.level = {track.level!r}",
        f"{REIGNING}/ExperimentConfig.gin_files = {reigning_files!r}",
        f"{REIGNING}/ExperimentConfig.bindings = {last!r}",
        f"{CHALLENGER}/ExperimentConfig.gin_files = {tuple(gin_files)!r}",
        f"{CHALLENGER}/ExperimentConfig.bindings = {(*bindings, *last)!r}",
    ]
    content = "\n".join(lines) + "\n"

    begun = owned and (folder / STARTS_FILE).exists()
    if begun and (not resume or read_bytes(race) != content.encode()):
        raise UsageError(
            "--run_dir must be a new folder, or that of this race with --resume. "
            f"{run_dir} holds a race that was begun, and a changed recipe, track or "
            "code makes another race. Nothing in it was changed: choose another folder."
        )

    make_folder(run_dir)
    write_whole(race, content)
    write_whole(run_dir / f"{REIGNING}.gin", "\n".join([_OURS, *reigning]) + "\n")
    study(
        str(race), run_dir=folder, shard_dir=shard_dir, resume=resume, until="decided"
    )
    make_folder(out)
    write_whole(out / TRACK_FILE, tracks(records)[name].read_bytes())
    _write_submission(folder, out, name, track, against)

    return out


def seeds_of(
    track: str,
    reigning: Sequence[str],
    own: Sequence[str],
    code: str,
    plugged: Sequence[str],
) -> tuple[int, ...]:
    """Returns a race's seeds, which nobody knows before the recipe is final.

    They follow from a hash of both sides' gin statements, tfasr's code and the
    plug-ins. So a recipe can't hold values that were tried out for the seeds that it
    will be given.

    Args:
        track: the track's name.
        reigning: the statements of the reigning record.
        own: those of the challenger.
        code: the hash of tfasr's code.
        plugged: the hash of each plug-in, in any order.
    """
    sealed = [track, list(reigning), list(own), code, sorted(plugged)]

    seeds: list[int] = []
    number = 0

    while len(seeds) < _NUMBER_OF_SEEDS:
        digest = sha256(canonical([number, *sealed]))
        seed = int(digest[:8], 16) >> 1  # 31 bits: every library accepts such a seed
        if seed not in seeds:
            seeds.append(seed)

        number += 1

    return tuple(seeds)


def _write_submission(
    folder: Path, out: Path, name: str, track: TrackConfig, against: str
) -> None:
    """Writes a submission, submission.json with all hashes last.

    Args:
        folder: of the race's study.
        out: the submission's folder.
        name: the track's.
        track: its rules.
        against: the hash of the study of the reigning record; "" for the baseline.
    """
    plan = plan_of(list(check_study(folder).plans.values())[-1])
    make_folder(out / "plugins")
    write_whole(out / STUDY_FILE, pack(folder))

    for plugin in plugins():
        file = Path(plugin.file)
        write_whole(out / "plugins" / file.name, file.read_bytes())

    write_whole(out / "code.diff", _code_diff())
    installed = {f"{d.name}=={d.version}" for d in importlib.metadata.distributions()}
    write_whole(out / "environment.txt", "\n".join(sorted(installed)) + "\n")

    for file, kind in (("card.md", CARD), ("card.json", CARD_JSON)):
        write_whole(out / file, report([folder], output_format=kind))

    hashes = {
        path.relative_to(out).as_posix(): file_sha256(path)
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name != SUBMISSION_FILE
    }
    content = {
        "track": name,
        "tfasr": __version__,
        "against": against,
        **stated_outcome(plan, folder, track),
        "files": hashes,
    }
    write_whole(out / SUBMISSION_FILE, json.dumps(content, indent=1) + "\n")


def stated_outcome(plan: Plan, folder: Path, track: TrackConfig) -> dict[str, Any]:
    """Returns the fields of submission.json that follow from the study.

    A submission is a record if the challenger, the second experiment, is sooner, and
    refuted if the reigning one is. The statements are the challenger's own that had an
    effect: the recipe to train again in the next race.

    Args:
        plan: of the race's study.
        folder: the study's.
        track: its rules.
    """
    decided = decision(plan, folder)
    verdicts = {"first": "refuted", "second": "record", None: "undecided"}
    compared = decided.comparison

    # The last statements are the track's bindings and the seed.
    run = next(run for run in plan.runs if run.experiment == CHALLENGER)
    used = statements([str(folder / run.folder / GIN_GIVEN_FILE)])

    return {
        "verdict": verdicts[decided.sooner],
        "decision": decision_text(plan, decided),
        "runs": decided.runs,
        "ratio": None if compared is None else compared.ratio,
        "interval": None if compared is None else compared.interval,
        "statements": used[: -len(track.bindings) - 1],
        "study": chain_of(folder / STARTS_FILE)[-1],
    }


def _own_statements(plan: Plan, side: str, track: TrackConfig) -> list[str]:
    """Returns a side's statements without the track's and the seed's.

    Those must come last, and all runs of a side must have the same others.

    Args:
        plan: of the race's study.
        side: `REIGNING` or `CHALLENGER`.
        track: whose bindings both sides train with.
    """
    per_seed = []
    for run in plan.runs:
        if run.experiment != side:
            continue

        texts = list(plan.identity["runs"][run.folder.as_posix()])
        last = [*track.bindings, f"TrainingConfig.seed = {run.seed}"]
        must(
            texts[-len(last) :] == last,
            f"{side}: its gin doesn't end with the track's bindings",
        )
        per_seed.append(texts[: -len(last)])

    must(
        all(texts == per_seed[0] for texts in per_seed),
        f"{side}: runs differ beyond the seed",
    )

    return per_seed[0]


def pack(folder: Path) -> bytes:
    """Returns the study as an archive; equal contents give equal bytes.

    Similar files are next to each other, which lets the compression find what they
    share.

    Args:
        folder: the study's. What `_LEFT_OUT` names is left out.
    """
    members = [
        path
        for path in folder.rglob("*")
        if path.is_file() and _LEFT_OUT.isdisjoint(path.relative_to(folder).parts)
    ]
    members.sort(key=lambda path: (path.suffix, path.name, str(path)))

    # A TarInfo made here has no times, users and modes, which differ between machines.
    # The USTAR format needs no extended headers, which `unpacked_study` refuses.
    packed = io.BytesIO()
    with tarfile.open(
        fileobj=packed, mode="w:xz", format=tarfile.USTAR_FORMAT, preset=9
    ) as archive:
        for path in members:
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))

    return packed.getvalue()


def _code_diff() -> str:
    """Returns how tfasr's code differs from its commit, as a text for readers.

    What binds a submission to its code is the hash in the sealed plan.
    """
    package = Path(__file__).parents[1]
    command = ["git", "-C", str(package), "diff", "HEAD", "--", str(package)]

    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return (
            "tfasr is installed, not a git checkout: environment.txt has its version.\n"
        )


def verify_submission(
    folder: Path, shard_dir: Path | None = None, records: Path = Path("records")
) -> Iterator[Check]:
    """Checks a submission's files, its study, and the rules of its track.

    Args:
        folder: the submission's.
        shard_dir: prepared splits of the track; None leaves the data unchecked.
        records: the folder of accepted submissions, which says what reigned.

    Yields:
        A check of each rule, then those of `verify_study`. If the files are not those that
        were written, nothing else is checked.
    """
    with tempfile.TemporaryDirectory() as unpacked:
        race = _Race(folder, Path(unpacked), records, shard_dir)
        for name, check in (("files", race.files), ("study", race.unpack)):
            done = judged(name, check)
            yield done
            if not done.passed:
                return

        for name in RULES:
            yield judged(name, getattr(race, f"check_{name}"))

        for check in verify_study(race.place, shard_dir):
            # A single run may have no hypotheses; a submission must.
            needed = check.name.endswith((", scores", ", settings"))
            if check.passed is None and needed:
                yield Check(check.name, False, "the data to check it is missing")
            elif check.name != "files":  # `unpack` wrote them
                yield check


def unpacked_study(archive: Path, place: Path) -> int:
    """Unpacks a study that anyone may have packed; returns how many bytes it has.

    Only regular files of plain headers are accepted, as `pack` writes them: no links,
    and no extended headers, whose texts may have any size.

    Args:
        archive: the file of a submission.
        place: an empty folder for the study's files.

    Raises:
        UsageError: for anything else, for a path outside the study, and for more than
            1 GiB in all or 200 times the archive's size.
    """
    with (
        opened(archive, _MOST_STUDY_BYTES) as packed,
        tempfile.TemporaryFile() as plain,
    ):
        most = min(_MOST_STUDY_BYTES, (1 << 20) + _MOST_RATIO * archive.stat().st_size)
        size = 0

        for block in _decompressed(packed):
            size += len(block)
            must(size <= most, f"{archive.name} unpacks to more than {most} bytes")
            plain.write(block)

        plain.seek(0)
        return sum(_member(header, plain, place) for header in _headers(plain))


def _decompressed(packed: IO[bytes]) -> Iterator[bytes]:
    """Yields an xz file's content in blocks of at most 1 MiB, in bounded memory.

    `lzma.open` would decompress several streams, one after the other, without end.
    """
    decompressor = lzma.LZMADecompressor(memlimit=256 << 20)
    while not decompressor.eof:
        content = packed.read(1 << 16) if decompressor.needs_input else b""
        if decompressor.needs_input and not content:
            raise EOFError("it is cut off")

        yield decompressor.decompress(content, 1 << 20)


def _headers(plain: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yields an archive's headers; whoever iterates reads the contents in between."""
    while any(block := plain.read(tarfile.BLOCKSIZE)):
        yield tarfile.TarInfo.frombuf(block, "utf-8", "strict")


def _member(header: tarfile.TarInfo, plain: IO[bytes], place: Path) -> int:
    """Writes a file of an archive, and returns its size in bytes.

    Args:
        header: of the file.
        plain: the archive, at the file's content.
        place: the folder to write into.

    Raises:
        UsageError: if it is no regular file inside ``place``, too large, or there
            already.
    """
    target = (place / header.name).resolve()
    size = header.size
    inside = target.is_relative_to(place.resolve()) and target != place.resolve()
    regular = header.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
    must(regular and inside, f"{header.name!r} is no regular file inside the study")
    must(0 <= size <= _MOST_MEMBER_BYTES, f"{header.name!r} has {size} bytes")

    # Contents are filled up with zeros to whole blocks.
    content = plain.read(size)
    must(len(content) == size, f"{header.name!r} is cut off")
    padding = -size % tarfile.BLOCKSIZE
    plain.seek(padding, io.SEEK_CUR)

    must(not target.exists(), f"{header.name!r} is there twice")
    make_folder(target.parent)
    target.write_bytes(content)

    return size


@dataclass
class _Race:
    """A submission and its study, which `unpack` writes to ``place``.

    Each `check_...` returns what it has compared, for the line of the verification, and
    raises `UsageError` if something is wrong.

    Attributes:
        folder: the submission's.
        place: an empty folder for the study.
        records: accepted submissions and further tracks.
        shard_dir: prepared splits of the track, or None.
    """

    folder: Path
    place: Path
    records: Path
    shard_dir: Path | None

    @cached_property
    def stated(self) -> dict[str, Any]:
        """The content of submission.json."""
        return _stated(self.folder / SUBMISSION_FILE)

    @cached_property
    def track(self) -> TrackConfig:
        """The track as it is declared now."""
        return load_track(self.stated["track"], self.records)

    @cached_property
    def sealed(self) -> dict[str, Any]:
        """The newest sealed plan of the study."""
        return list(check_study(self.place).plans.values())[-1]

    @cached_property
    def plan(self) -> Plan:
        """The newest sealed plan, as an object."""
        return plan_of(self.sealed)

    @cached_property
    def runs(self) -> list[Run]:
        """All runs that the study has finished, of both sides."""
        return [load_run(run_dir) for run_dir in check_study(self.place).runs.values()]

    def runs_of(self, side: str) -> list[Run]:
        """Returns the runs of one side."""
        run_dirs = check_study(self.place).runs
        return [
            load_run(run_dir) for (name, _), run_dir in run_dirs.items() if name == side
        ]

    def files(self) -> str:
        """Checks that the submission has all its files, and each as it was written."""
        plain_files(self.folder)
        stated = self.stated["files"]
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        present = {path.relative_to(self.folder).as_posix() for path in paths} - {
            SUBMISSION_FILE
        }
        odd = sorted(present ^ stated.keys())
        must(not odd, f"files are missing or extra: {odd}")
        needed = {
            STUDY_FILE,
            TRACK_FILE,
            "code.diff",
            "environment.txt",
            "card.md",
            "card.json",
        }
        must(needed <= present, f"files are missing: {sorted(needed - present)}")
        changed = [
            name
            for name in stated
            if file_sha256(self.folder / name, _MOST_STUDY_BYTES) != stated[name]
        ]
        must(
            not changed,
            f"changed after the submission was written: {', '.join(changed)}",
        )

        return f"{len(stated)} files as they were written"

    def unpack(self) -> str:
        """Unpacks the study; a damaged archive is an error like any other."""
        try:
            return f"{unpacked_study(self.folder / STUDY_FILE, self.place)} bytes"
        except (tarfile.TarError, EOFError, lzma.LZMAError, UnicodeError) as error:
            raise UsageError(f"{STUDY_FILE} can't be unpacked: {error}") from error

    def check_track(self) -> str:
        """The track must be the one that is declared now, byte by byte."""
        name = self.stated["track"]
        track_file = tracks(self.records).get(name)
        must(track_file is not None, f"there is no track {name!r}")
        same = read_bytes(self.folder / TRACK_FILE) == read_bytes(track_file)
        must(same, f"{TRACK_FILE} differs from the current track {name}")

        return name

    def check_rules(self) -> str:
        """Both sides must have been trained by the track's rules, and comparably.

        The study must be the race that `record` writes: its two experiments, the
        track's level and clock, the usual limit for a busy machine, and no settings
        that `record` doesn't bind. A closed track demands a challenger of the paper's
        model.
        """
        config = self.plan.config
        track = self.track
        sides = (REIGNING, CHALLENGER)
        must(
            config.experiments == sides,
            f"the experiments are not {' and '.join(sides)}",
        )
        must(self.sealed["until"] == "decided", "the study was not run until decided")
        same = (config.level, config.policy) == (track.level, track.clock)
        must(same, "level or clock are not the track's")
        usual = config.most_taken == StudyConfig.most_taken
        must(
            usual,
            f"the machine may take {config.most_taken}, not {StudyConfig.most_taken}",
        )

        for side, experiment in self.plan.experiments.items():
            must(
                not experiment.environment, f"{side} had its own environment variables"
            )
            must(not experiment.seeds, f"{side} had its own seeds")
            _own_statements(self.plan, side, track)

        division = self.sealed["trained"][CHALLENGER]["division"]
        must(
            track.division in ("open", division),
            f"the challenger's division is {division}",
        )
        facts = [
            {n: v for n, v in run.comparability.items() if n not in _NOT_COMPARED}
            for run in self.runs
        ]
        other = [
            fact for fact in facts if fact["validation_references"] != track.validation
        ]
        must(not other, "the validation set is not the track's")
        must(
            all(fact == facts[0] for fact in facts),
            "the runs are not comparable with each other",
        )

        return f"{len(facts)} runs by the rules of the track"

    def check_seeds(self) -> str:
        """The seeds must be those that follow from the recipes' hash."""
        statements_by_side = {
            side: _own_statements(self.plan, side, self.track)
            for side in self.plan.experiments
        }
        code = self.sealed["code"]["files"]
        plugged = list(self.sealed["plugins"].values())
        sides = statements_by_side[REIGNING], statements_by_side[CHALLENGER]
        drawn = seeds_of(self.stated["track"], *sides, code, plugged)
        must(
            self.plan.config.seeds == drawn,
            "the seeds don't follow from the recipes' hash",
        )
        trained = list(dict.fromkeys(run.seed for run in self.plan.runs))
        must(trained == list(drawn), "the runs have other seeds than the plan")

        return f"{len(drawn)} seeds follow from the sealed recipes"

    def check_turns(self) -> str:
        """The sides must have trained in turns, alternately first."""
        events = read_events(self.place / STARTS_FILE)
        starts = [event["value"] for event in events if event["key"] == "start"]
        order = list(
            dict.fromkeys((start["seed"], start["experiment"]) for start in starts)
        )
        wanted = []

        for number, seed in enumerate(self.plan.config.seeds):
            turn = [(seed, REIGNING), (seed, CHALLENGER)]
            if number % 2:
                turn.reverse()

            wanted += turn

        must(
            order == wanted[: len(order)],
            "the two sides did not take turns, seed by seed",
        )

        return f"{len(order)} runs in turns"

    def check_machine(self) -> str:
        """All runs must have had the same machine, software and conditions."""
        facts = [run.system["system"] for run in self.runs]
        other = [
            n for n in _SAME if any(fact.get(n) != facts[0].get(n) for fact in facts)
        ]
        must(not other, f"the runs' machines or software differ in {', '.join(other)}")
        sessions = [_conditions(run) for run in self.runs]
        conditions = [each for of_run in sessions for each in of_run]

        for name in _SAME_CONDITIONS:
            values = [each[name] for each in conditions]
            must(
                all(value == values[0] for value in values), f"the runs' {name} differ"
            )

        return f"{facts[0]['processor']}, {facts[0]['cores']} cores, the same threads"

    def check_against(self) -> str:
        """The study must have raced the record that reigned when it was submitted.

        If the submission is among the accepted ones, only those before it count.
        """
        earlier = submissions(self.records, self.stated["track"])
        studies = [each["study"] for each in earlier]
        if self.stated["study"] in studies:
            earlier = earlier[: studies.index(self.stated["study"])]

        reigning, texts = _reigning(self.track, earlier)
        raced = self.stated["against"]
        name = reigning or "the baseline"
        must(
            raced == reigning,
            (
                f"{name} reigned, but the study raced {raced or 'the baseline'}: set "
                "--records"
            ),
        )
        must(
            _own_statements(self.plan, REIGNING, self.track) == texts,
            "the reigning record was trained with other statements than its own",
        )

        return name

    def check_verdict(self) -> str:
        """Verdict and card must be those that the runs give."""
        decided = decision(self.plan, self.place)
        must(decided.over, f"the race is not decided yet: {decided.verdict}")
        again = json.loads(
            json.dumps(stated_outcome(self.plan, self.place, self.track))
        )
        wrong = [name for name in again if self.stated.get(name) != again[name]]
        must(not wrong, f"{SUBMISSION_FILE} and the runs differ in {', '.join(wrong)}")

        stated = read_object(self.folder / "card.json", "Restore it from a copy.")
        again = json.loads(report([self.place], output_format=CARD_JSON))
        must(again == stated, "card.json has other numbers than the runs give")
        text = read_text(
            self.folder / "card.md", "Restore it from a copy.", _MOST_TEXT_BYTES
        )
        must(
            text == report([self.place], output_format=CARD),
            "card.md is not the runs' card",
        )

        return f"{self.stated['verdict']}: {self.stated['decision']}"

    def check_load(self) -> str | None:
        """Compares what slows a run down or shortens its clock between the two sides.

        Other work may have taken more from the slower side, and the faster side may
        have done work before its clock starts, but only as much as a quarter of the gap
        between them.

        Returns:
            What both sides lost; None in a race of utterances and without a faster side.
        """
        sides = (REIGNING, CHALLENGER)
        decided = decision(self.plan, self.place)
        if self.track.kind != "seconds" or decided.sooner is None:
            return None

        sooner, later = sides if decided.sooner == "first" else sides[::-1]
        fast = _mean_conditions(self.runs_of(sooner))
        slow = _mean_conditions(self.runs_of(later))
        gap_s = slow.seconds - fast.seconds

        allowed = SHARE_OF_GAP * gap_s / slow.seconds
        more = slow.lost - fast.lost
        must(
            more <= allowed,
            f"other work and stops took {100 * more:.1f} % more of {later}'s "
            f"processors than of {sooner}'s, and at most {100 * allowed:.1f} % is "
            "allowed. Race on a quiet machine.",
        )
        more_s = fast.start_s - slow.start_s
        must(
            more_s <= SHARE_OF_GAP * gap_s,
            f"before its clock starts, {sooner} takes {more_s:.1f} s longer than "
            f"{later}, which is too much of a gap of {gap_s:.1f} s",
        )

        return (
            f"other work and stops took {100 * fast.lost:.1f} % of {sooner}'s "
            f"processors and {100 * slow.lost:.1f} % of {later}'s; starts took "
            f"{fast.start_s:.1f} and {slow.start_s:.1f} s"
        )

    def check_leaks(self) -> str:
        """Neither code nor training split may contain validation transcripts."""
        code = sorted((self.folder / "plugins").glob("*"))
        same = sorted(map(file_sha256, code)) == sorted(self.sealed["plugins"].values())
        must(same, "the files in plugins/ are not those that the plan names")
        remedy = "A submission's code is text."
        files = (*code, self.folder / "code.diff")
        texts = [read_text(path, remedy, _MOST_TEXT_BYTES) for path in files]
        words = _words(" ".join([*texts, *self.stated["statements"]]))
        run = self.runs[0]
        references = {row.reference for row in read_transcripts(run.hypotheses[0])}
        copied = sorted(leaked_transcripts(references, words))
        must(
            not copied,
            f"the code contains the words of the validation transcript {copied[:1]}",
        )

        vocabulary = {
            word for text in references for word in _words(text) if len(word) > 3
        }
        leaked = vocabulary.intersection(words) | vocabulary.intersection(
            w[::-1] for w in words
        )

        most = _VOCABULARY_SHARE * len(vocabulary)
        many = len(leaked) >= _VOCABULARY and len(leaked) > most
        must(
            not many,
            f"the code contains {len(leaked)} of {len(vocabulary)} validation words",
        )
        shared = (run.fact("shared_with_training") or {}).get("utterances")
        must(not shared, f"{shared} recordings are in both training and validation")

        return f"{len(leaked)} of {len(vocabulary)} validation words are in the code"

    def check_data(self) -> str | None:
        """The shards at hand must be the track's splits, which share no recording."""
        if self.shard_dir is None:
            return None

        rows = []
        hashes = {"train": self.track.training, "validation": self.track.validation}

        for split, wanted in hashes.items():
            folder = self.shard_dir / split
            shards_hash(folder)
            rows.append(list(read_manifest(folder, read_index(folder))))
            references = references_hash((row.id, row.text) for row in rows[-1])
            must(references == wanted, f"{split} has other utterances than the track's")

        shared = {}
        for name in ("content", "speaker", "text"):
            train, held_out = ({getattr(row, name) for row in split} for split in rows)
            shared[name] = len((train & held_out) - {""})

        must(
            not shared["content"], f"{shared['content']} recordings are in both splits"
        )

        return (
            f"the splits share {shared['speaker']} speakers and {shared['text']} "
            "transcripts"
        )


def _words(text: str) -> list[str]:
    """Returns the words of a text or of code, in lower case, without punctuation."""
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


def leaked_transcripts(references: Iterable[str], words: Sequence[str]) -> set[str]:
    """Returns the transcripts of 3 or more words that a text has, in any order.

    The words must be side by side in the text. Words that are spelled backwards count
    too.

    Args:
        references: transcripts.
        words: the text's, from `_words`.
    """
    by_length: dict[int, dict[tuple[str, ...], str]] = {}
    for text in references:
        parts = _words(text)
        if len(parts) >= _TELLTALE_WORDS:
            by_length.setdefault(len(parts), {})[tuple(sorted(parts))] = text

    transcript_words = {
        word for texts in by_length.values() for parts in texts for word in parts
    }
    leaked = set()
    # Letters may be reversed too.
    plain = [word for word in words if not word.isdigit() or word in transcript_words]

    for spelled in (plain, [word[::-1] for word in plain]):
        for length, texts in by_length.items():
            for first in range(len(spelled) - length + 1):
                window = spelled[first : first + length]
                # Nearly all windows of code contain a word that no transcript has.
                if (
                    window[0] not in transcript_words
                    or window[-1] not in transcript_words
                ):
                    continue

                key = tuple(sorted(window))
                if key in texts:
                    leaked.add(texts[key])

    return leaked


@dataclass(frozen=True)
class _Conditions:
    """What may have made runs slower than their recipe, or their clocks shorter.

    Attributes:
        seconds: from the start of the clock to the end; the mean of several runs, as
            all fields are.
        lost: the share of the processors' time that others took, or during which the
            run was stopped.
        start_s: from the process's creation to the start of the clock.
    """

    seconds: float
    lost: float
    start_s: float


def _mean_conditions(runs: Sequence[Run]) -> _Conditions:
    """Returns the mean conditions of a side's runs.

    Raises:
        UsageError: if samples of load are missing for more than a fifth of a run.
    """
    counted = [name for name in INTERVALS if name != "init"]

    seconds = []
    lost = []
    starts_s = []

    for run in runs:
        use = host_use(read_host_file(run.path), run.timeline, counted)
        must(use is not None, f"{run.name} has no samples of load")
        is_sampled = use.unknown_s <= _MOST_UNKNOWN * use.wall_s
        must(is_sampled, f"{run.name} has no samples of load for {use.unknown_s:.0f} s")
        start_s = run.timeline.zero_us / 1e6
        seconds.append(run.wall_s - start_s)
        lost.append(1 - use.share)
        starts_s.append(start_s)

    return _Conditions(fmean(seconds), fmean(lost), fmean(starts_s))


def _conditions(run: Run) -> list[dict[str, Any]]:
    """Returns the conditions that decided the speed of each process.

    Raises:
        UsageError: if a session states nothing.
    """
    conditions = [run.events[index]["value"] for index in run.timeline.of("conditions")]
    must(
        len(conditions) >= run.sessions,
        f"{run.name} doesn't say under which conditions it trained",
    )

    return conditions


# The heading of a track's table. {confidence}: in percent; the intervals are those of
# the decisions, at the track's level.
_TABLE = """
| submission | verdict | ratio, {confidence:.4g} % interval | runs each | hash |
|---|---|---|---:|---|"""


def write_table(records: Path) -> None:
    """Writes the table of a folder of records into its README.md.

    Raises:
        UsageError: if that file is someone else's, or if there is no such folder.
    """
    page = records / "README.md"
    owned = page.is_file() and read_bytes(page).startswith(_TABLE_BEGINS.encode())
    claim = "page that tfasr record --table wrote"
    check_owned(records, "--records", claim, [page.name], owned=owned)
    must(records.is_dir(), f"--records must be a folder. Received: {records}.")
    write_whole(page, records_table(records))


def records_table(records: Path) -> str:
    """Returns the table of all submissions, undecided and refuted ones included.

    It is Markdown, with a heading for each track; the baseline is its first row.
    """
    lines = [f"{_TABLE_BEGINS} from the submissions here."]
    for name in tracks(records):
        track = load_track(name, records)
        about = f"Track {markdown_text(name)}: {track.kind}, {track.division} division."
        lines.append(f"\n## {markdown_text(track.title)}\n\n{about}")
        lines.append(_TABLE.format(confidence=100 * (1 - track.level)))
        baseline = ", ".join(Path(file).stem for file in track.baseline)
        lines.append(f"| {markdown_text(baseline)} | baseline | | | |")

        for each in submissions(records, name):
            place = urllib.parse.quote(f"{name}/{each['folder']}/card.md")
            link = f"[{markdown_text(each['folder'])}]({place})"
            ends = each["interval"]
            ratio = "n/a"
            if each["ratio"] is not None:
                ratio = f"{each['ratio']:.3f}"
            if ends:
                ratio += f", {ends[0]:.3f} to {ends[1]:.3f}"

            cells = (
                link,
                each["verdict"],
                ratio,
                str(each["runs"]),
                f"`{each['study'][:16]}`",
            )
            lines.append(f"| {' | '.join(cells)} |")

    return "\n".join(lines) + "\n"
