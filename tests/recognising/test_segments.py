"""Long recordings are cut in pauses, and nothing of them is lost."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.alphabet import Alphabet, join_words
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.decoding.word_beam_search import WordBeamSearch
from tfasr.recognising.segments import PauseCutter, align, aligned_words, path_spans

RATE_HZ = 1000


def cut(samples: np.ndarray, longest_s: float, block: int = 700):
    """The segments of samples that arrive in blocks."""
    cutter = PauseCutter(RATE_HZ, longest_s)
    segments = []
    for start in range(0, len(samples), block):
        segments += cutter.push(samples[start : start + block])

    return segments + cutter.finish()


@settings(max_examples=60, deadline=None)
@given(
    seconds=st.floats(0.001, 30),
    longest_s=st.floats(1.0, 8.0),
    block=st.integers(1, 40000),
    seed=st.integers(0, 100),
)
def test_each_moment_belongs_to_one_segment_that_has_heard_it(
    seconds, longest_s, block, seed
):
    samples = np.random.default_rng(seed).normal(size=max(int(seconds * RATE_HZ), 1))
    segments = cut(
        samples.astype(np.float32), longest_s, max(block, len(samples) // 50)
    )

    assert (segments[0].from_s, segments[-1].to_s) == (-np.inf, np.inf)
    for before, after in zip(segments, segments[1:], strict=False):
        assert before.to_s == after.from_s

    for segment in segments:
        begin = round(segment.start_s * RATE_HZ)
        end = begin + len(segment.samples)

        np.testing.assert_array_equal(
            segment.samples, samples[begin:end].astype(np.float32)
        )
        assert 0 < len(segment.samples) <= longest_s * RATE_HZ
        assert begin / RATE_HZ <= max(segment.from_s, 0)
        assert end / RATE_HZ >= min(segment.to_s, len(samples) / RATE_HZ)

    # Half a segment at least lies between two cuts.
    assert len(segments) <= 1 + len(samples) / RATE_HZ / (0.3 * longest_s)


def test_cuts_lie_in_pauses():
    rng = np.random.default_rng(1)
    times_s = np.arange(60 * RATE_HZ) / RATE_HZ
    quiet = (times_s % 3.0) > 2.5  # half a second in each three
    samples = rng.normal(size=len(times_s)) * np.where(quiet, 0.01, 1.0)

    segments = cut(samples.astype(np.float32), longest_s=10.0)

    assert len(segments) >= 6
    for segment in segments[1:]:
        assert 2.6 < segment.from_s % 3.0 < 2.9


def test_a_short_recording_stays_whole_and_an_empty_one_has_no_segment():
    (segment,) = cut(np.ones(2000, np.float32), longest_s=2.0)

    assert (segment.start_s, len(segment.samples)) == (0.0, 2000)
    assert cut(np.ones(0, np.float32), longest_s=2.0) == []


# Words of a hypothesis and where they are.

ALPHABET = Alphabet(" ab_")
PLAIN = Alphabet(" ab", None)


def log_probs_of(path: str, alphabet: Alphabet, sure: float = 0.9) -> np.ndarray:
    """Log-probabilities whose best path is the given one, a dot being the blank."""
    classes = [
        alphabet.blank_id if c == "." else alphabet.characters.index(c) for c in path
    ]
    rest = (1 - sure) / (alphabet.num_classes - 1)
    probabilities = np.full((len(path), alphabet.num_classes), rest)
    probabilities[np.arange(len(path)), classes] = sure

    return np.log(probabilities).astype(np.float32)


def test_words_reach_from_their_first_characters_frame_to_their_lasts():
    scores = log_probs_of("..aa.b..  .b_b.", ALPHABET)
    words = aligned_words("ab bb", scores, ALPHABET, first_s=1.0, step_s=0.5)

    assert [(w.text, w.start_s, w.end_s) for w in words] == [
        ("ab", 2.0, 4.0),
        ("bb", 6.5, 8.0),
    ]
    assert [w.confidence for w in words] == [pytest.approx(0.9), pytest.approx(0.9)]


def test_a_hypothesis_that_is_not_the_best_path_is_aligned_too():
    scores = log_probs_of("aa..b", PLAIN)
    (word,) = aligned_words("aab", scores, PLAIN, first_s=0.0, step_s=1.0)

    assert (word.text, word.start_s, word.end_s) == ("aab", 0.0, 5.0)
    # The second a stands where the blank is most probable.
    assert word.confidence == pytest.approx((0.9 * 0.9 * 0.1 / 3) ** (1 / 3), rel=1e-4)


@pytest.mark.parametrize(
    ("alphabet", "labels", "expected"),
    [
        (
            Alphabet(
                " abc",
                None,
                tuple((p, -1.0) for p in ("\u2581", *"abc", "\u2581a", "bc")),
            ),
            ["\u2581a", "", "bc", "", "\u2581", "", "b", "b"],
            [("abc", 0, 3), ("b", 6, 8)],
        ),
        (
            Alphabet(" a甲乙", None),
            ["甲", "乙", "", "a", "a"],
            [("甲", 0, 1), ("乙", 1, 2), ("a", 3, 5)],
        ),
        (Alphabet("कमि ", None), list("कमि क"), [("कमि", 0, 3), ("क", 4, 5)]),
        (Alphabet("ทีน่", None), list("ที่นี่"), [("ที่", 0, 3), ("นี่", 3, 6)]),
    ],
)
def test_words_of_units_and_of_scripts_without_spaces_have_times(
    alphabet, labels, expected
):
    ids = [alphabet.symbols.index(s) if s else alphabet.blank_id for s in labels]
    scores = np.full((len(ids), alphabet.num_classes), -9.0, np.float32)
    scores[np.arange(len(ids)), ids] = -0.01
    (text,) = [
        h.text
        for h in GreedyDecoder(alphabet).decode(scores[None], np.array([len(ids)]))
    ]

    words = aligned_words(text, scores, alphabet, 0.0, 1.0)

    assert [(w.text, w.start_s, w.end_s) for w in words] == expected
    assert join_words(w.text for w in words) == text


# letters; each has a state, and a blank before
@pytest.mark.parametrize("count", [40, 64, 200])
def test_long_texts_that_are_not_the_best_path_have_times_too(count):
    spoken = "ab" * count
    scores = log_probs_of("".join(letter + "." for letter in spoken), PLAIN)
    written = "b" + spoken[1:]

    (word,) = aligned_words(written, scores, PLAIN, first_s=0.0, step_s=1.0)

    assert (word.text, word.start_s, word.end_s) == (written, 0.0, 4.0 * count - 1)


def test_a_word_that_a_dictionary_completed_needs_no_frames_for_its_end():
    scores = log_probs_of("ab", PLAIN)
    search = WordBeamSearch(PLAIN, ["abba"], num_threads=1)
    (hypothesis,) = search.decode(scores[None], np.array([2]))

    (word,) = aligned_words(hypothesis.text, scores, PLAIN, first_s=1.0, step_s=0.5)

    assert (word.text, word.start_s, word.end_s) == ("abba", 1.0, 2.0)


def test_no_text_and_no_frames_have_no_words():
    assert aligned_words("", log_probs_of("...", PLAIN), PLAIN, 0.0, 1.0) == []
    assert aligned_words("", np.zeros((0, 4), np.float32), PLAIN, 0.0, 1.0) == []
    with pytest.raises(ValueError, match="enough frames.*2 frames, 3 labels"):
        align(PLAIN.encode("aba"), log_probs_of("ab", PLAIN), PLAIN)


def collapsed(path, alphabet: Alphabet) -> str:
    return alphabet.decode(
        [span.label for span in path_spans(np.array(path), alphabet.blank_id)]
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(1, 4),
    text=st.text("ab", min_size=1, max_size=3),
    alphabet=st.sampled_from([ALPHABET, PLAIN]),
)
def test_an_alignment_is_the_best_of_all_paths_that_spell_the_text(
    seed, frames, text, alphabet
):
    scores = np.random.default_rng(seed).normal(0, 2, (frames, alphabet.num_classes))
    scores = (scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))).astype(
        np.float32
    )
    separator = alphabet.separator and alphabet.characters.index(alphabet.separator)

    def spells(path) -> bool:
        """Whether a path spells the text, with separators nowhere but between equal
        neighbours.
        """
        labels = [span.label for span in path_spans(np.array(path), alphabet.blank_id)]
        characters = [label for label in labels if label != separator]
        if alphabet.decode(labels) != text:
            return False

        return labels == characters or all(
            label != separator
            or (0 < n < len(labels) - 1 and labels[n - 1] == labels[n + 1] != separator)
            for n, label in enumerate(labels)
        )

    paths = [
        p
        for p in itertools.product(range(alphabet.num_classes), repeat=frames)
        if spells(p)
    ]
    if not paths:
        with pytest.raises(ValueError, match="enough frames"):
            align(alphabet.encode(text), scores, alphabet)

        return

    best = max(paths, key=lambda path: scores[np.arange(frames), list(path)].sum())
    spans = align(alphabet.encode(text), scores, alphabet)

    assert spans == path_spans(np.array(best), alphabet.blank_id)
