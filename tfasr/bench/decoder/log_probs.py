"""Log-probabilities of utterances with what was said in them, in memory and as an ``.npz`` file."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.durable import whole_file
from tfasr.errors import UsageError

_KEYS = ("log_probs", "offsets", "references", "audio_s", "alphabet")
_LOGIT_KEYS = ("logits", "offsets", "texts", "chars")
_LOGIT_FRAME_S = 0.02
_ROUNDING = 1e-4


@dataclass(frozen=True)
class LogProbs:
    """What a model answered to a split's utterances.

    Attributes:
        log_probs: float32 ``(frames, classes)``: all utterances' frames one after another, natural
            logarithms, blank last.
        offsets: integers ``(utterances + 1,)``: utterance n is frames
            ``offsets[n]:offsets[n + 1]``.
        references: plain texts, one an utterance.
        audio_s: float64 ``(utterances,)``: seconds of audio of each utterance.
        alphabet: the classes.
        lexicon: words for decoders that need them; may be empty.
        forward_s: wall-clock seconds of the forward passes that they come from; None where that is
            not known.

    Raises:
        ValueError: if the arrays do not fit together.
    """

    log_probs: np.ndarray
    offsets: np.ndarray
    references: list[str]
    audio_s: np.ndarray
    alphabet: Alphabet
    lexicon: tuple[str, ...] = ()
    forward_s: float | None = None

    def __post_init__(self):
        frames_and_classes = self.log_probs.shape
        if len(frames_and_classes) != 2 or frames_and_classes[1] != self.alphabet.num_classes:
            raise ValueError(
                f"log_probs must have the shape (frames, {self.alphabet.num_classes}): the "
                f"alphabet's characters and the blank. Received: shape={frames_and_classes}."
            )
        utterances = len(self.references)
        if not utterances or self.offsets.shape != (utterances + 1,):
            raise ValueError(
                "offsets must hold one number more than there are references, of which there must "
                f"be some. Received: {utterances} references, offsets of {self.offsets.shape}."
            )
        rising = self.offsets[0] == 0 and (np.diff(self.offsets) >= 0).all()
        if not rising or self.offsets[-1] != len(self.log_probs):
            raise ValueError(
                f"offsets must rise from 0 to {len(self.log_probs)}, the frames of log_probs. "
                f"Received: {self.offsets[0]}..{self.offsets[-1]}."
            )
        highest = self.log_probs.max(initial=-np.inf)
        if not highest <= _ROUNDING:  # a NaN is not either
            raise ValueError(
                f"log_probs must be natural logarithms of probabilities. Received: {highest}."
            )
        if self.audio_s.shape != (utterances,) or not (self.audio_s > 0).all():
            raise ValueError(
                f"audio_s must hold {utterances} durations above 0, one for each reference. "
                f"Received: shape={self.audio_s.shape}, smallest={self.audio_s.min(initial=0)}."
            )

    @property
    def audio_hours(self) -> float:
        """Hours of audio of all utterances together."""
        return float(self.audio_s.sum()) / 3600

    def batches(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields what `Decoder.decode` takes: padded log-probabilities, and their lengths.

        Args:
            size: utterances in a batch; the last may hold fewer.
        """
        lengths = np.diff(self.offsets)
        for first in range(0, len(lengths), size):
            own = lengths[first : first + size]
            batch = np.zeros((len(own), own.max(), self.log_probs.shape[1]), np.float32)
            for row, begin, length in zip(batch, self.offsets[first:], own, strict=False):
                row[:length] = self.log_probs[begin : begin + length]
            yield batch, own

    def save(self, path: Path) -> None:
        """Writes an ``.npz`` file, which appears whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        alphabet = {"characters": self.alphabet.characters, "separator": self.alphabet.separator}
        with whole_file(path) as file:
            np.savez(
                file,
                log_probs=self.log_probs,
                offsets=self.offsets,
                references=np.array(self.references, dtype=str),
                audio_s=self.audio_s,
                alphabet=np.array(json.dumps(alphabet)),
                lexicon=np.array(self.lexicon, dtype=str),
                forward_s=np.array(np.nan if self.forward_s is None else self.forward_s),
            )

    @classmethod
    def load(cls, path: Path) -> "LogProbs":
        """Reads what `save` wrote, or logits.

        A file of logits holds ``logits`` float ``(frames, classes)`` of frames of 20 ms,
        ``offsets``, ``texts``, ``chars`` (the characters in class order in one string, where "_" is
        the separator) and perhaps ``lexicon``.

        Raises:
            UsageError: if there is no such file, or it holds something else.
        """
        try:
            with path.open("rb") as file:  # NumPy would leave a broken archive open
                return _read(np.load(file, allow_pickle=False))
        except FileNotFoundError as error:
            raise UsageError(
                f"{path} must be a file of log-probabilities. It is missing."
            ) from error
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(
                f"{path} must be a file of log-probabilities, as --save_log_probs writes it. "
                f"Received: {error}"
            ) from error


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the log-probabilities of logits ``(frames, classes)``, float32."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalised = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised.astype(np.float32, copy=False)


def _read(stored: np.lib.npyio.NpzFile | np.ndarray) -> LogProbs:
    if isinstance(stored, np.ndarray):
        raise ValueError("a single array.")
    words = tuple(stored["lexicon"].tolist()) if "lexicon" in stored else ()
    if all(key in stored for key in _LOGIT_KEYS):
        offsets, characters = stored["offsets"].astype(np.int64), str(stored["chars"])
        return LogProbs(
            log_probs=log_softmax(stored["logits"]),
            offsets=offsets,
            references=stored["texts"].tolist(),
            audio_s=np.diff(offsets) * _LOGIT_FRAME_S,
            alphabet=Alphabet(characters, "_" if "_" in characters else None),
            lexicon=words,
        )
    missing = [key for key in _KEYS if key not in stored]
    if missing:
        raise ValueError(f"arrays {sorted(stored.files)}, without {missing}.")
    return LogProbs(
        log_probs=stored["log_probs"].astype(np.float32, copy=False),
        offsets=stored["offsets"].astype(np.int64),
        references=stored["references"].tolist(),
        audio_s=stored["audio_s"].astype(np.float64),
        alphabet=Alphabet(**json.loads(str(stored["alphabet"]))),
        lexicon=words,
        forward_s=_seconds(stored),
    )


def _seconds(stored: np.lib.npyio.NpzFile) -> float | None:
    seconds = float(stored["forward_s"]) if "forward_s" in stored else np.nan
    return seconds if np.isfinite(seconds) else None
