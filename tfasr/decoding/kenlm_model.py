"""N-gram language models in ARPA format, of any order, through the kenlm package."""

import math
import re
import threading
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError

MAX_WEIGHT = 10.0
MAX_WORD_BONUS = 100.0
_COUNT = re.compile(r"ngram\s+(\d+)\s*=\s*(\d+)\s*$")


class KenlmModel:
    """Scores words by an ARPA file; give it to `WordBeamSearch` with ``mode="kenlm"``.

    A word multiplies a beam's probability by ``P(word | words before it) ** weight *
    exp(word_bonus)``; the sentence's end counts as a word without bonus.

    Args:
        path: an ARPA file as text, its words in plain spelling.
        weight: 0..10.
        word_bonus: natural logarithm, -100..100; what every word adds, to offset the model's
            liking for few words.

    Raises:
        ValueError: if the file is missing, empty or not a sound ARPA file, or a number is out of
            its range.
        UsageError: if the kenlm package is not installed.
    """

    def __init__(self, path: str | Path, weight: float = 1.0, word_bonus: float = 0.0):
        if not 0 <= weight <= MAX_WEIGHT:
            raise ValueError(f"weight must lie in 0..{MAX_WEIGHT}. Received: weight={weight!r}.")
        if not abs(word_bonus) <= MAX_WORD_BONUS:
            raise ValueError(
                f"word_bonus must lie in -{MAX_WORD_BONUS}..{MAX_WORD_BONUS}. "
                f"Received: word_bonus={word_bonus!r}."
            )
        self.path = Path(path)
        self.weight = float(weight)
        self.word_bonus = float(word_bonus)
        _check_arpa(self.path)
        kenlm = _kenlm()
        config = kenlm.Config()
        config.show_progress = False
        config.arpa_complain = kenlm.ARPALoadComplain.NONE
        try:
            self._model = kenlm.Model(str(self.path), config)
        except (OSError, RuntimeError, MemoryError) as error:
            raise ValueError(f"{self.path} must be a sound ARPA file. kenlm: {error}") from error

    def scorer(self, words: list[str]) -> "WordScorer":
        """Returns what scores these words by their index.

        Raises:
            ValueError: if the model does not know a word; it names them.
        """
        unknown = [word for word in words if word not in self._model]
        if unknown:
            raise ValueError(
                f"Every word of the lexicon must stand in {self.path}. "
                f"Received: {len(unknown)} that do not: {unknown[:10]}."
            )
        return WordScorer(_kenlm(), self._model, words, self.weight, self.word_bonus)


class WordScorer:
    """Numbers the states of a kenlm model, so that the compiled core can keep them.

    State -1 is the beginning of a sentence.
    """

    def __init__(self, kenlm: Any, model: Any, words: list[str], weight: float, word_bonus: float):
        self._new_state = kenlm.State
        self._model = model
        self._words = words
        self._scale = weight * math.log(10)
        self._word_bonus = word_bonus
        self._begin = kenlm.State()
        model.BeginSentenceWrite(self._begin)
        self._states: list[Any] = []
        self._ids: dict[Any, int] = {}
        self._lock = threading.Lock()

    def score(self, state: int, word: int) -> tuple[int, float]:
        """Returns the next state and the natural logarithm of the word's factor."""
        following = self._new_state()
        log10 = self._model.BaseScore(self._state(state), self._words[word], following)
        with self._lock:
            number = self._ids.setdefault(following, len(self._states))
            if number == len(self._states):
                self._states.append(following)
        return number, self._scale * log10 + self._word_bonus

    def end(self, state: int) -> float:
        """Returns the natural logarithm of the factor of the sentence's end."""
        log10 = self._model.BaseScore(self._state(state), "</s>", self._new_state())
        return self._scale * log10

    def _state(self, number: int) -> Any:
        return self._begin if number < 0 else self._states[number]


def _kenlm() -> Any:
    try:
        import kenlm
    except ImportError as error:
        raise UsageError(
            f"KenlmModel needs the kenlm package ({error}). Install it: pip install 'tfasr[kenlm]'."
        ) from error
    return kenlm


def _check_arpa(path: Path) -> None:
    # Kenlm would answer with an unclear error or an absurd allocation.
    if not path.is_file():
        raise ValueError(f"An ARPA file must exist. Received: {path}.")
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"An ARPA file must not be empty. Received: {path} of 0 bytes.")
    counts = _arpa_counts(path)
    if not counts:
        raise ValueError(
            "An ARPA file must begin with \\data\\ and lines of the form 'ngram 1=10'. "
            f"Received: {path}, which does not."
        )
    # A line holds at least a digit, a tab, a character and its end.
    if 4 * sum(counts) > size:
        raise ValueError(
            f"An ARPA file must hold the n-grams it counts. Received: {path} of {size} bytes, "
            f"which counts {counts}."
        )


def _arpa_counts(path: Path) -> list[int]:
    counts: list[int] = []
    in_header = False
    with path.open("rb") as lines:
        for raw in iter(lambda: lines.readline(1 << 16), b""):
            line = raw.decode("utf-8", errors="replace").strip()
            found = _COUNT.match(line)
            if not in_header:
                if line and line != "\\data\\":
                    return []
                in_header = line == "\\data\\"
            elif found:
                counts.append(int(found[2][:18]))
            elif line:
                return counts
    return counts
