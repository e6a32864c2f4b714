"""Word beam search: CTC beams that contain only words of a dictionary.

The paper's decoder and the default of ``tfasr train``. The search itself is C++
(``_word_beam/``); this module checks its arguments and spells words as classes.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.decoding.decoder import DecoderKind, Hypothesis, check_log_probs, split_words
from tfasr.decoding.hot_words import most_added
from tfasr.errors import RunError
from tfasr.kit.process import usable_cores

if TYPE_CHECKING:
    from tfasr.decoding.language_models import KenlmModel

MAX_COUNT = 1 << 53  # float64 represents integers up to this exactly
MODES = ("words", "ngrams", "ngrams_forecast", "ngrams_forecast_sample", "kenlm")
MAX_BEAM_WIDTH = 1 << 16  # a limit against mistakes: memory grows with the width
MAX_SMOOTHING = 1e9
# Words drawn for a forecast, as in the published code; all words if there are fewer.
FORECAST_SAMPLE = 20


@dataclass(frozen=True)
class BigramCounts:
    """How often words, and pairs of consecutive words, occur in a training text.

    Attributes:
        unigrams: counts of at least 1, by word.
        bigrams: the same by (word, following word).

    Raises:
        ValueError: for other counts, or pairs with words that have no unigram count.
    """

    unigrams: Mapping[str, int]
    bigrams: Mapping[tuple[str, str], int]

    def __post_init__(self):
        if not self.unigrams:
            raise ValueError(
                "Bigram counts must have at least one word. Received: no words."
            )

        counts = [*self.unigrams.items(), *self.bigrams.items()]
        wrong = [
            (k, n)
            for k, n in counts
            if not isinstance(n, int) or not 1 <= n <= MAX_COUNT
        ]
        if wrong:
            raise ValueError(
                f"Counts must be integers in 1..2**53. Received: {wrong[:10]}."
            )

        in_pairs = set(itertools.chain.from_iterable(self.bigrams))
        strangers = sorted(in_pairs - self.unigrams.keys())
        if strangers:
            raise ValueError(
                "Every word of a bigram must have a unigram count. "
                f"Received: {len(strangers)} words without: {strangers[:10]}."
            )

    @classmethod
    def from_transcripts(
        cls,
        transcripts: Iterable[str],
        word_characters: str | None = None,
    ) -> "BigramCounts":
        """Counts words (see `split_words`) and their pairs within each transcript."""
        unigrams: Counter[str] = Counter()
        bigrams: Counter[tuple[str, str]] = Counter()

        for text in transcripts:
            words = split_words(text, word_characters)
            unigrams.update(words)
            bigrams.update(zip(words, words[1:], strict=False))

        return cls(unigrams, bigrams)


class WordBeamSearch:
    """Decodes log-probabilities into words of a dictionary, with any characters between them.

    The beam consists of the ``beam_width`` best class sequences. Equal scores are
    ordered by classes, so results don't depend on threads or machine. If every path is
    impossible, the hypothesis is the empty text with score -inf.

    Args:
        alphabet: the characters; with a separator, beams spell ``co_ol`` and hypotheses
            "cool".
        lexicon: words in plain spelling. None allows any words, which makes this a
            prefix beam search; it needs ``hot_words``.
        beam_width: class sequences kept per frame, 1..65536.
        mode: ``words`` (dictionary only), ``ngrams`` (bigrams scored at word ends),
            ``ngrams_forecast`` (also within words, by their possible endings),
            ``ngrams_forecast_sample`` (the same, estimated from 20 words) or ``kenlm``.
        language_model: a `BigramCounts` for the modes with n-grams, a `KenlmModel` for
            ``kenlm``.
        hot_words: words in plain spelling and their weights, in -100..100, which are
            added to the log score of a text at each occurrence of the word, up to what
            `tfasr.decoding.hot_words.most_added` returns; for the modes ``words`` and
            ``kenlm``. Words that the lexicon lacks are added to it.
        smoothing: added to every bigram's count.
        word_characters: the characters of words; None for all but the space.
        recombine: if beams share the point in the dictionary and the language model's
            state, drop those that are no more probable than the best of them, with and
            without a final blank. Not in the published algorithm.
        collapse_spaces: write runs of spaces as one, without any at the ends of a text.
        num_threads: threads for the utterances of a batch; None for one per available
            core.
        seed: seed of the words drawn by ``ngrams_forecast_sample``.

    Raises:
        ValueError: if an argument is invalid, or for units of a script without spaces.
        RunError: if the compiled C++ search is missing; the message has the command to
            build it.

    Source: Scheidl, Fiel, Sablatnig, "Word beam search: a connectionist temporal
        classification decoding algorithm", ICFHR 2018.
    """

    def __init__(
        self,
        alphabet: Alphabet,
        lexicon: Iterable[str] | None,
        beam_width: int = 256,
        mode: str = "words",
        *,
        language_model: "BigramCounts | KenlmModel | None" = None,
        hot_words: Mapping[str, float] | None = None,
        smoothing: float = 0.0,
        word_characters: str | None = None,
        recombine: bool = False,
        collapse_spaces: bool = True,
        num_threads: int | None = None,
        seed: int = 0,
    ):
        core = _core()
        if not isinstance(alphabet, Alphabet):
            raise ValueError(
                f"alphabet must be a tfasr.Alphabet. Received: {str(alphabet)[:50]!r}."
            )

        self.alphabet = alphabet
        self.beam_width = _integer("beam_width", beam_width, 1, MAX_BEAM_WIDTH)
        if num_threads is None:
            num_threads = usable_cores()

        self.num_threads = _integer("num_threads", num_threads, 1, 1 << 10)
        if mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}. Received: mode={mode!r}.")

        self.mode = mode
        word_characters = _word_characters(alphabet, word_characters)
        hot_words = dict(hot_words or {})
        _check_hot_words(hot_words, lexicon, mode)
        words = _spelled_words(
            alphabet, hot_words if lexicon is None else lexicon, word_characters
        )
        if mode == "kenlm":
            _check_kenlm(language_model)
            words_in_model = set(language_model.known_words(words.values()))
            words = {
                spelled: word
                for spelled, word in words.items()
                if word in words_in_model
            }

        # After unknown words were dropped, because hot words are expected.
        if hot_words:
            words |= _spelled_words(alphabet, hot_words, word_characters)
            words = dict(sorted(words.items()))

        model = None
        if mode == "kenlm":
            scorer = language_model.scorer(list(words.values()))
            model = core.OutsideModel(score=scorer.score, end=scorer.end)
        elif mode != "words":
            seed = _integer("seed", seed, 0, (1 << 64) - 1)
            model = _bigram_model(core, mode, language_model, words, smoothing, seed)
        elif language_model is not None:
            raise ValueError(
                "mode='words' takes no language model. Received one; set mode too."
            )

        if hot_words:
            bonuses = [
                (index, min(float(hot_words[word]), most_added(word, alphabet)))
                for index, word in enumerate(words.values())
                if word in hot_words
            ]
            model = core.HotWords(bonuses=bonuses, model=model)

        space = -1  # spaces are written as they come
        if collapse_spaces and " " in alphabet.symbols:
            space = alphabet.symbols.index(" ")

        self._decoder = core.Decoder(
            words=list(words),
            is_open=lexicon is None,
            kinds=_kinds(alphabet, word_characters, words.values()),
            separator=alphabet.separator_id,
            space=space,
            beam_width=self.beam_width,
            recombine=bool(recombine),
            model=model,
        )

    def decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> list[Hypothesis]:
        """Returns the best hypothesis of each utterance.

        Args:
            log_probs: float32 ``(batch, time, classes)``, natural logarithms, blank
                last. -inf is allowed, and frames beyond an utterance's length may
                contain anything.
            lengths: integers ``(batch,)``.

        Raises:
            ValueError: for wrong shapes or types, or a valid frame with NaN or a
                logarithm above 1e-4 (rounding).
        """
        return [
            candidates[0] for candidates in self.decode_n_best(log_probs, lengths, 1)
        ]

    def begin(self) -> "WordBeamUtterance":
        """Returns an utterance that is decoded while its frames arrive."""
        return WordBeamUtterance(self.alphabet, _core().Utterance(self._decoder))

    def decode_n_best(
        self,
        log_probs: np.ndarray,
        lengths: np.ndarray,
        n_best: int,
    ) -> list[list[Hypothesis]]:
        """Returns up to ``n_best`` hypotheses of different text per utterance, best first."""
        n_best = _integer("n_best", n_best, 1, MAX_BEAM_WIDTH)
        log_probs, lengths = _arrays(log_probs, lengths)
        check_log_probs(log_probs, lengths, self.alphabet.num_classes)
        beams = self._decoder.decode(log_probs, lengths, n_best, self.num_threads)

        return [
            [
                Hypothesis(self.alphabet.decode(labels), score)
                for labels, score in candidates
            ]
            for candidates in beams
        ]


class WordBeamUtterance:
    """Decodes an utterance while its frames arrive.

    The result is the same as from all frames at once.
    """

    def __init__(self, alphabet: Alphabet, utterance: Any):
        self._alphabet = alphabet
        self._utterance = utterance

    def hear(self, log_probs: np.ndarray) -> None:
        """Adds frames; raises the ValueErrors of `WordBeamSearch.decode`."""
        log_probs = np.asarray(log_probs)
        if log_probs.ndim != 2:
            raise ValueError(
                f"log_probs must have the shape (time, classes). Received: {log_probs.shape}."
            )

        batch, _ = _arrays(log_probs[None], np.zeros(1, np.int64))
        check_log_probs(batch, np.array([len(log_probs)]), self._alphabet.num_classes)
        self._utterance.hear(batch[0])

    def best(self) -> Hypothesis:
        """Returns the best hypothesis for all frames so far; more may follow."""
        ((labels, score),) = self._utterance.results(1)
        return Hypothesis(self._alphabet.decode(labels), score)


def _core() -> Any:
    """Imports the compiled search; RunError, with the command to build it, without one."""
    try:
        from tfasr.decoding import _word_beam_core
    except ImportError as error:
        raise RunError(
            "WordBeamSearch needs its compiled core, which can't be imported "
            f"({error}). Greedy decoding works without it. Build it with a C++17 compiler: "
            "pip install -e . in the source folder."
        ) from error

    return _word_beam_core


def _integer(name: str, value: int, low: int, high: int) -> int:
    """Returns an integer setting; ValueError if it isn't one in ``low..high``."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or not low <= value <= high:
        raise ValueError(
            f"{name} must be an integer in {low}..{high}. Received: {name}={value!r}."
        )

    return int(value)


def _arrays(
    log_probs: np.ndarray, lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns both arrays in the types and layout that the compiled search reads."""
    log_probs = np.asarray(log_probs)
    lengths = np.asarray(lengths)
    if log_probs.dtype.kind != "f":
        raise ValueError(
            f"log_probs must be floating. Received: dtype={log_probs.dtype}."
        )
    if lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths must be integers. Received: dtype={lengths.dtype}.")

    with np.errstate(over="ignore"):  # values too small for float32 become -inf
        log_probs = np.ascontiguousarray(log_probs, dtype=np.float32)

    return log_probs, np.ascontiguousarray(lengths, dtype=np.int64)


def _kinds(
    alphabet: Alphabet,
    word_characters: frozenset[str],
    lexicon: Iterable[str],
) -> list[int]:
    """Returns each class's role in words, as the compiled search numbers it.

    1 if words contain it, 2 if it starts a word without a space before it, else 0.
    """
    if alphabet.units and " " not in alphabet.characters:
        raise ValueError(
            "Word beam search needs words, but units of a script without spaces cross them. "
            "Choose the decoder greedy or beam, or train on characters."
        )

    joined = alphabet.units or all(len(split_words(word)) == 1 for word in lexicon)
    if not (joined and any(alphabet.word_starts)):
        return [int(c in word_characters) for c in alphabet.symbols]

    starts = zip(alphabet.symbols, alphabet.word_starts, strict=True)

    return [0 if symbol == " " else 1 + start for symbol, start in starts]


def _word_characters(alphabet: Alphabet, word_characters: str | None) -> frozenset[str]:
    """Returns the characters of words; ValueError if the alphabet lacks some."""
    if word_characters is None:
        return frozenset(alphabet.characters) - {" "}

    foreign = sorted(set(word_characters) - set(alphabet.characters))
    if foreign:
        raise ValueError(
            f"word_characters must be characters of the alphabet {alphabet.characters!r}. "
            f"Received: word_characters={word_characters!r} with {foreign}."
        )

    return frozenset(word_characters) | ({alphabet.separator} - {None})


def _spelled_words(
    alphabet: Alphabet,
    lexicon: Iterable[str],
    word_characters: frozenset[str],
) -> dict[tuple[int, ...], str]:
    """Returns words by the classes that spell them, sorted, for the search's dictionary.

    Raises:
        ValueError: if words are no strings, empty, or of other characters.
    """
    if isinstance(lexicon, str) or not isinstance(lexicon, Iterable):
        raise ValueError(
            f"lexicon must be an iterable of words. Received: {str(lexicon)[:50]!r}."
        )

    words = list(lexicon)
    # All of them, so that one correction is enough.
    strange = sorted(
        repr(word) for word in words if not isinstance(word, str) or not word
    )
    if strange:
        raise ValueError(f"Words must be non-empty strings. Received: {strange[:10]}.")

    if not words:
        raise ValueError(
            "lexicon must have at least one word. Received: an empty dictionary."
        )

    # A separator is only spelled between doubled letters.
    writable = word_characters - {alphabet.separator}
    words = set(words)
    if not set("".join(words)) <= writable:
        wrong = sorted(word for word in words if not set(word) <= writable)
        foreign = sorted(set("".join(wrong)) - writable)
        raise ValueError(
            f"Words must be made of the characters {''.join(sorted(writable))!r}. Received: "
            f"{len(wrong)} words with the characters {foreign}: {wrong[:10]}."
        )

    return dict(sorted((tuple(alphabet.encode(word)), word) for word in words))


def _bigram_model(
    core: Any,
    mode: str,
    counts: BigramCounts | None,
    words: dict[tuple[int, ...], str],
    smoothing: float,
    seed: int,
) -> Any:
    """Creates the search's bigram model; ValueError if it doesn't fit the words."""
    if not isinstance(counts, BigramCounts):
        raise ValueError(
            f"mode={mode!r} needs language_model=BigramCounts(...). "
            f"Received: {type(counts).__name__}."
        )

    if not isinstance(smoothing, (int, float)) or not 0 <= smoothing <= MAX_SMOOTHING:
        raise ValueError(
            f"smoothing must lie in 0..{MAX_SMOOTHING}. Received: smoothing={smoothing!r}."
        )

    # As the compiled search numbers words.
    ids = {word: index for index, word in enumerate(words.values())}
    strangers = sorted(word for word in counts.unigrams if word not in ids)
    if strangers:
        raise ValueError(
            "The language model's words must be in the lexicon. "
            f"Received: {len(strangers)} that are not: {strangers[:10]}."
        )

    rows = [
        (ids[first], ids[second], count)
        for (first, second), count in counts.bigrams.items()
    ]

    return core.BigramModel(
        unigrams=[float(counts.unigrams.get(word, 0)) for word in ids],
        bigrams=np.array(rows, dtype=np.int64).reshape(-1, 3),
        k=float(smoothing),
        forecast=mode != "ngrams",
        sample=FORECAST_SAMPLE if mode == "ngrams_forecast_sample" else 0,
        seed=seed,
    )


def _check_hot_words(
    hot_words: Mapping[str, float],
    lexicon: Iterable[str] | None,
    mode: str,
) -> None:
    """Raises ValueError unless lexicon, mode and hot words go together."""
    if lexicon is None and (mode != "words" or not hot_words):
        raise ValueError(
            "lexicon must be an iterable of words, or None in mode='words' with hot words. "
            f"Received: None, mode={mode!r}, {len(hot_words)} hot words."
        )

    if hot_words and mode not in ("words", "kenlm"):
        raise ValueError(
            f"Hot words need mode='words' or mode='kenlm'. Received: mode={mode!r}."
        )


def _check_kenlm(model: "KenlmModel | None") -> None:
    from tfasr.decoding.language_models import KenlmModel

    if not isinstance(model, KenlmModel):
        raise ValueError(
            f"mode='kenlm' needs language_model=KenlmModel(...). Received: {type(model).__name__}."
        )


def _make(config, alphabet, lexicon, num_threads) -> WordBeamSearch:
    return WordBeamSearch(
        alphabet,
        lexicon,
        beam_width=config.beam_width,
        recombine=config.recombine,
        num_threads=num_threads,
    )


WORD_BEAM = DecoderKind(_make, needs_lexicon=True, label="word beam", recombines=True)
