"""Makes a corpus without downloads: a synthesiser speaks commands in many voices.

``tfasr demo``, tests and benchmarks train on it. The corpus's folder contains
``train.tsv``, ``validation.tsv`` and ``test.tsv``, the audio in a folder per split, and
``synthetic.json``: the arguments, and whether the corpus is finished. The same
arguments give the same bytes everywhere, so results on it can be compared between
machines.
"""

import contextlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import soundfile

from tfasr.corpora.corpus import Corpus
from tfasr.corpora.espeak import SAMPLE_RATE_HZ, Espeak
from tfasr.corpora.manifests import COLUMNS, read_tsv
from tfasr.corpora.reading import found_in, require_folder
from tfasr.corpora.utterance import SPLITS, CorpusSplit
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import PARTIAL_SUFFIX, take_lock, write_whole

# A small grammar of spoken commands: a few dozen words, in sentences of one to seven.
_DIGITS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
)

# Slots in braces are filled from _SLOTS. A form that is listed twice is drawn twice as
# often.
_FORMS = (
    "turn the {room} {device} {state}",
    "turn the {room} {device} {state}",
    "switch {state} the {device}",
    "set {clock} to {hour} {minutes}",
    "wake me at {hour} {minutes}",
    "call {digit} {digit} {digit} {digit}",
    "{digit} {digit} {digit}",
    "go {direction} {digit} steps",
    "move {direction} and stop",
    "play the {which} song",
    "{answer}",
    "what's the time in the {room}",
)
_SLOTS = {
    "room": ("kitchen", "bedroom", "garden", "office", "hall"),
    "device": ("light", "heater", "radio", "fan"),
    "state": ("on", "off"),
    "clock": ("alarm", "timer"),
    "hour": (*_DIGITS[1:], "ten", "eleven", "twelve"),
    "minutes": ("ten", "fifteen", "twenty", "thirty", "forty", "fifty"),
    "digit": _DIGITS,
    "direction": ("left", "right", "up", "down", "forward", "backward"),
    "which": ("first", "next", "last"),
    "answer": ("yes", "no", "stop", "go"),
}

ENGLISH = "en"


@dataclass(frozen=True)
class Grammar:
    """A language's sentences, and the voices that speak them.

    Attributes:
        forms: sentences with slots in braces, such as "go {direction}".
        slots: the words for each slot.
        voices: names in espeak-ng.
    """

    forms: Sequence[str]
    slots: Mapping[str, Sequence[str]]
    voices: Sequence[str]

    def sentence(self, generator: np.random.Generator) -> str:
        """Draws a sentence: a form, then a word for each of its slots."""
        form = _choose(generator, self.forms)
        return re.sub(
            r"\{(\w+)\}", lambda slot: _choose(generator, self.slots[slot[1]]), form
        )


def grammar_of(language: str, voices: Sequence[str] = ()) -> Grammar:
    """Returns a language's grammar with these voices, or its own.

    Raises:
        UsageError: if languages.json doesn't have the language.
    """
    languages = json.loads(
        Path(__file__).with_name("languages.json").read_text("utf-8")
    )
    languages[ENGLISH] = {"forms": _FORMS, "slots": _SLOTS, "accents": _ACCENTS}
    if language not in languages:
        raise UsageError(
            f"--language must be one of {', '.join(sorted(languages))}. Received: "
            f"{language!r}."
        )

    content = languages[language]
    usual = [
        f"{accent}+{variant}" for accent in content["accents"] for variant in _VARIANTS
    ]

    return Grammar(content["forms"], content["slots"], tuple(voices) or tuple(usual))


def _choose(generator: np.random.Generator, options: Sequence[str]) -> str:
    """Draws one of the options."""
    return options[int(generator.integers(len(options)))]


_ACCENTS = (
    "en",
    "en-us",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-gb-x-rp",
    "en-us-nyc",
)
# Of men and women; each accent in each variant is a voice.
_VARIANTS = (
    "m1",
    "m2",
    "m3",
    "m4",
    "m5",
    "m6",
    "m7",
    "m8",
    "f1",
    "f2",
    "f3",
    "f4",
    "f5",
)

_USUAL_VOICES = 48
# Ranges from which each utterance's values are drawn uniformly. They vary speech without
# making it hard to recognise, so that a small model learns it within minutes.
_RATES_WPM = (130, 200)
_PITCHES = (35, 65)  # espeak-ng's usual pitch is 50
_GAINS_DB = (-9.0, 0.0)
_SIGNAL_TO_NOISE_DB = (25.0, 45.0)
_PAUSES_S = (0.0, 0.15)  # before and after a sentence


class Speaker(Protocol):
    """What makes speech of text; tests use one without espeak-ng."""

    def speak(
        self,
        text: str,
        voice: str,
        rate_wpm: int = 175,
        pitch: int = 50,
    ) -> np.ndarray:
        """Returns int16 ``(samples,)`` at `SAMPLE_RATE_HZ`."""


@dataclass(frozen=True)
class SpokenSentence:
    """An utterance of the corpus, before it is written."""

    text: str
    voice: str
    duration_s: float  # including the pauses before and after
    pause_before_s: float
    wav: bytes  # the content of a 16-bit WAV file


def voices_of_splits(
    seed: int,
    num_voices: int,
    voices: Sequence[str],
) -> tuple[list[str], list[str], list[str]]:
    """Draws different voices for the three splits.

    Validation and test get a sixth each, but at least one, so that error rates are
    those on new speakers.
    """
    # Utterances use other seeds, see `spoken_corpus`.
    order = np.random.default_rng([seed, 0]).permutation(len(voices))
    chosen = [voices[index] for index in order[:num_voices]]
    held_out = max(1, num_voices // 6)

    return chosen[2 * held_out :], chosen[:held_out], chosen[held_out : 2 * held_out]


def speak_sentence(
    speaker: Speaker,
    grammar: Grammar,
    voices: list[str],
    generator: np.random.Generator,
) -> SpokenSentence:
    """Returns a random sentence in one of the voices, at the synthesiser's sample rate.

    All choices are drawn from ``generator`` in a fixed order, text first.
    """
    text = grammar.sentence(generator)
    voice = _choose(generator, voices)
    rate_wpm = int(generator.integers(*_RATES_WPM))
    pitch = int(generator.integers(*_PITCHES))
    samples, before = _in_a_room(speaker.speak(text, voice, rate_wpm, pitch), generator)
    # Written to memory first, because libsndfile doesn't report a full disk as an
    # OSError.
    wav = io.BytesIO()
    soundfile.write(wav, samples, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
    duration_s = len(samples) / SAMPLE_RATE_HZ
    pause_before_s = before / SAMPLE_RATE_HZ

    return SpokenSentence(text, voice, duration_s, pause_before_s, wav.getvalue())


def _in_a_room(
    speech: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Changes loudness, adds pauses and noise.

    Returns:
        int16 ``(samples,)``, and how many of them are the pause before the speech.
    """
    before, after = (generator.uniform(*_PAUSES_S, size=2) * SAMPLE_RATE_HZ).astype(int)
    gain = 10 ** (generator.uniform(*_GAINS_DB) / 20)
    noise_to_signal = 10 ** (-generator.uniform(*_SIGNAL_TO_NOISE_DB) / 20)
    # Summed in integers, because float sums may differ between machines in the last
    # bits.
    energy = int(np.sum(speech.astype(np.int64) ** 2))
    noise_level = noise_to_signal * (energy / max(1, len(speech))) ** 0.5
    quiet = np.pad(speech.astype(np.float64), (before, after))
    noisy = quiet + noise_level * generator.standard_normal(len(quiet))
    clipped = np.clip(np.rint(gain * noisy), -(2**15), 2**15 - 1)

    return clipped.astype(np.int16), int(before)


MARKER_FILE = "synthetic.json"
# Increase this whenever a change makes other audio from the same parameters.
_RECIPE = 1


@dataclass(frozen=True)
class Parameters:
    """What decides a corpus's bytes, as in ``synthetic.json``.

    Attributes:
        seed: of all choices, 0 or more.
        num_train: utterances for training.
        num_validation: utterances for validation.
        num_test: utterances for the test.
        num_voices: in all splits together.
        recipe: the version of this module's way to make audio.
        language: "en" or one in languages.json.
        voices: names in espeak-ng; empty for the language's default voices.

    Raises:
        UsageError: if a split would get no utterance or no voice.
    """

    seed: int
    num_train: int
    num_validation: int
    num_test: int
    num_voices: int
    recipe: int = _RECIPE
    language: str = ENGLISH
    voices: Sequence[str] = ()

    @property
    def grammar(self) -> Grammar:
        """The language's sentences and the voices that speak them."""
        return grammar_of(self.language, self.voices)

    def to_json(self) -> dict[str, Any]:
        # Left out for English, as by older versions, which had no other language.
        optional = {"language": self.language, "voices": list(self.voices)}
        changed = optional if (self.language, *self.voices) != (ENGLISH,) else {}

        return {n: v for n, v in asdict(self).items() if n not in optional} | changed

    def __post_init__(self):
        counts = (self.num_train, self.num_validation, self.num_test)
        if self.seed < 0 or min(counts) < 1:
            raise UsageError(
                "A synthetic corpus must have a seed of 0 or more and at least one "
                f"utterance per split. Received: seed={self.seed}, utterances={counts}."
            )

        most = len(self.grammar.voices)
        if not len(SPLITS) <= self.num_voices <= most:
            raise UsageError(
                f"num_voices must be {len(SPLITS)}..{most}, so that every split has "
                f"its own voices. Received: {self.num_voices}."
            )


def make_synthetic_corpus(
    corpus_dir: str | Path,
    *,
    seed: int = 0,
    num_train: int = 800,
    num_validation: int = 100,
    num_test: int = 100,
    num_voices: int | None = None,
    language: str = ENGLISH,
    voices: Sequence[str] = (),
) -> None:
    """Makes a corpus of synthetic speech, unless the folder already holds the same corpus.

    The same arguments give the same bytes with the same versions of espeak-ng and
    NumPy. If a killed call left the corpus unfinished, it is made anew. The arguments
    are those of `Parameters`.

    Args:
        corpus_dir: gets the corpus; new, empty, or made by an earlier call.
        seed: of all choices.
        num_train: utterances for training.
        num_validation: utterances for validation.
        num_test: utterances for the test.
        num_voices: in all splits together, by default 48 or all that the language has.
        language: "en" or one in languages.json.
        voices: names in espeak-ng, such as "de+f2"; by default those of the language.

    Raises:
        UsageError: for wrong arguments or a folder with other files.
        RunError: if the synthesiser or the disk fails.
    """
    if num_voices is None:
        num_voices = min(_USUAL_VOICES, len(grammar_of(language, voices).voices))

    parameters = Parameters(
        seed,
        num_train,
        num_validation,
        num_test,
        num_voices,
        language=language,
        voices=voices,
    )
    corpus_dir = Path(corpus_dir)

    try:
        corpus_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"A corpus must have a folder. Received: {corpus_dir}: {error}."
        ) from error

    with _locked(corpus_dir):
        if _is_made(corpus_dir, parameters):
            return

        with Espeak() as espeak:  # before the first file, as it may not be installed
            try:
                _make(corpus_dir, parameters, espeak)
            except OSError as error:
                raise RunError(
                    f"The synthetic corpus in {corpus_dir} could not be written: "
                    f"{error}. Make room and run again."
                ) from error


def spoken_corpus(
    parameters: Parameters, speaker: Speaker
) -> Iterator[tuple[str, SpokenSentence]]:
    """Yields splits and sentences; the order matters, because the speaker keeps state."""
    grammar = parameters.grammar
    voices = voices_of_splits(parameters.seed, parameters.num_voices, grammar.voices)
    counts = (parameters.num_train, parameters.num_validation, parameters.num_test)

    for number, (split, of_split, count) in enumerate(
        zip(SPLITS, voices, counts, strict=True), 1
    ):
        for index in range(count):
            # Each utterance has its own generator, so its text doesn't depend on the
            # others.
            generator = np.random.default_rng([parameters.seed, number, index])
            yield split, speak_sentence(speaker, grammar, of_split, generator)


def read_parameters(corpus_dir: str | Path) -> Parameters:
    """Returns the parameters with which a finished corpus was made."""
    return Parameters(**_read_marker(_require_made(corpus_dir))[0])


def read_synthetic(corpus_dir: str | Path, split: str) -> CorpusSplit:
    """Returns a split of a finished corpus."""
    corpus_dir = _require_made(corpus_dir)
    return read_tsv(corpus_dir / f"{split}.tsv", corpus_dir)


def synthetic_splits(corpus_dir: str | Path) -> list[str]:
    """Returns all splits of a finished corpus; UsageError if it isn't finished."""
    _require_made(corpus_dir)
    return list(SPLITS)


def _require_made(corpus_dir: str | Path) -> Path:
    """Returns a finished corpus's folder; UsageError for any other."""
    expected = "a folder that tfasr.corpora.synthetic.make_synthetic_corpus has made"
    corpus_dir = require_folder(corpus_dir, expected)
    if not _read_marker(corpus_dir)[1]:
        raise UsageError(
            f"--corpus_dir must be {expected} and finished, as its {MARKER_FILE} "
            f"records. Received: {corpus_dir}. Found there: {found_in(corpus_dir)}."
        )

    return corpus_dir


@contextlib.contextmanager
def _locked(corpus_dir: Path) -> Iterator[None]:
    """Reserves a folder during the block; UsageError if another process makes it."""
    held = (
        f"Only one process may make a corpus. {corpus_dir} is being made by another "
        "one: wait for it, or choose another folder."
    )
    # The folder itself is locked, which avoids a lock file in it.
    folder = os.open(corpus_dir, os.O_RDONLY)
    try:
        take_lock(folder, corpus_dir, held)
        yield
    finally:
        os.close(folder)


def _read_marker(corpus_dir: Path) -> tuple[dict, bool]:
    """Returns the parameters in ``synthetic.json`` and whether the corpus is finished."""
    try:
        content = json.loads((corpus_dir / MARKER_FILE).read_text(encoding="utf-8"))
        return content, content.pop("finished", False)
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}, False


def _write_marker(corpus_dir: Path, parameters: Parameters, finished: bool) -> None:
    content = (
        json.dumps({**parameters.to_json(), "finished": finished}, indent=2) + "\n"
    )
    write_whole(corpus_dir / MARKER_FILE, content)


def _is_made(corpus_dir: Path, parameters: Parameters) -> bool:
    """Whether the folder holds the finished corpus; removes an unfinished one.

    Raises:
        UsageError: if the folder has other files, or another corpus.
    """
    made_with, finished = _read_marker(corpus_dir)
    if not made_with:
        if {path.name for path in corpus_dir.iterdir()} - {
            MARKER_FILE + PARTIAL_SUFFIX
        }:
            raise UsageError(
                f"A synthetic corpus needs a separate folder. Received: {corpus_dir}. "
                f"Found there: {found_in(corpus_dir)}. Choose another folder."
            )

        return False

    if finished:
        if made_with == parameters.to_json():
            return True

        raise UsageError(
            f"The synthetic corpus in {corpus_dir} must have been made with the same "
            f"arguments. It was made with {made_with}. Received: "
            f"{parameters.to_json()}. Choose another folder, or delete this one."
        )

    for split in SPLITS:
        shutil.rmtree(corpus_dir / split, ignore_errors=True)
        (corpus_dir / f"{split}.tsv").unlink(missing_ok=True)

    return False


def _make(corpus_dir: Path, parameters: Parameters, espeak: Espeak) -> None:
    """Makes the corpus, marked as unfinished until all is on the disk."""
    # First, so that an interrupted call's folder can be recognised.
    _write_marker(corpus_dir, parameters, finished=False)
    rows = {split: ["\t".join(COLUMNS)] for split in SPLITS}

    for split in SPLITS:
        (corpus_dir / split).mkdir()

    for split, spoken in spoken_corpus(parameters, espeak):
        path = f"{split}/{len(rows[split]) - 1:05}.wav"
        (corpus_dir / path).write_bytes(spoken.wav)
        rows[split].append(
            "\t".join((path, spoken.voice, f"{spoken.duration_s:.3f}", spoken.text))
        )

    for split in SPLITS:
        write_whole(corpus_dir / f"{split}.tsv", "\n".join(rows[split]) + "\n")

    _write_marker(corpus_dir, parameters, finished=True)


SYNTHETIC = Corpus(read_synthetic, synthetic_splits)
