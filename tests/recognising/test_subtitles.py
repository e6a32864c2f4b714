"""Subtitles that people can read: the limits hold whatever was said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.alphabet import clusters
from tfasr.errors import UsageError
from tfasr.recognising.files import FORMATS, to_srt, to_vtt
from tfasr.recognising.spec import Transcript, Word
from tfasr.recognising.subtitles import SubtitleRules, subtitles


def spoken(*timed):
    """Words of (text, start, end), recognised with confidence 0.9."""
    return [Word(text, start_s, end_s, 0.9) for text, start_s, end_s in timed]


@st.composite
def recognised_words(draw):
    """Words as long recordings have them: some overlap, some are long."""
    words = []
    at_s = draw(st.floats(0, 10))
    for _ in range(draw(st.integers(0, 40))):
        at_s = max(at_s + draw(st.floats(-0.3, 3)), 0.0)  # segments may overlap
        length_s = draw(st.floats(0, 9))
        text = draw(st.text("abcü世界कि", min_size=1, max_size=100))
        words.append(Word(text, at_s, at_s + length_s, 0.5))

    return sorted(words, key=lambda word: word.start_s)


RULES = st.builds(
    SubtitleRules,
    characters=st.integers(1, 60),
    lines=st.integers(1, 3),
    shortest_s=st.floats(0.5, 2),
    longest_s=st.floats(2, 8),
)


@settings(deadline=None)
@given(words=recognised_words(), rules=RULES)
def test_every_limit_holds_and_no_letter_is_lost(words, rules):
    cues = subtitles(words, rules)
    for cue, following in zip(cues, [*cues, None][1:], strict=True):
        assert 1 <= len(cue.lines) <= rules.lines
        assert all(0 < len(clusters(line)) <= rules.characters for line in cue.lines)
        assert (
            rules.shortest_s - 1e-9 <= cue.end_s - cue.start_s <= rules.longest_s + 1e-9
        )
        assert following is None or following.start_s >= cue.end_s

    written = "".join("".join(cue.lines) for cue in cues).replace(" ", "")
    assert written == "".join(word.text for word in words)


def test_a_pause_ends_a_subtitle_that_was_shown_long_enough():
    words = spoken(
        ("one", 0, 0.4), ("two", 0.5, 1.2), ("three", 2.1, 2.5), ("four", 2.5, 2.6)
    )
    cues = subtitles(words, SubtitleRules())

    assert [(cue.start_s, cue.end_s, cue.lines) for cue in cues] == [
        (0, 1.2, ["one two"]),
        (2.1, 3.1, ["three four"]),
    ]


def test_subtitles_of_fast_speech_are_delayed_rather_than_cut():
    words = spoken(*((f"word{n:02}", n / 20, n / 20 + 0.05) for n in range(40)))
    cues = subtitles(words, SubtitleRules(characters=20, lines=1))

    assert all(cue.end_s - cue.start_s >= 1 for cue in cues)
    assert [cue.start_s for cue in cues] == sorted(cue.start_s for cue in cues)


@pytest.mark.parametrize("written", [to_srt, to_vtt])
def test_files_have_the_lines_of_their_cues(written):
    transcript = Transcript(
        spoken(("a" * 30, 0, 1), ("b" * 30, 1, 2), ("c" * 30, 2, 3)), 3.0
    )
    text = written("name", transcript)

    assert f"{'a' * 30}\n{'b' * 30}\n" in text


@pytest.mark.parametrize("written", [to_srt, to_vtt])
def test_rules_change_the_lines_of_files_of_cues_alone(written):
    transcript = Transcript(
        spoken(("a" * 30, 0, 1), ("b" * 30, 1, 2), ("c" * 30, 2, 3)), 3.0
    )

    narrow = SubtitleRules(characters=10, lines=1)

    assert f"\n{'a' * 10}\n\n" in written("name", transcript, narrow)
    assert FORMATS["text"].by(narrow) is FORMATS["text"]
    assert f"\n{'a' * 10}\n\n" in FORMATS["srt"].by(narrow).write("name", transcript)


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"characters": 0}, "characters"),
        ({"lines": -1}, "lines"),
        ({"shortest_s": float("nan")}, "shortest_s"),
        ({"longest_s": 0.5}, "longest_s"),
    ],
)
def test_a_limit_that_no_subtitle_can_keep_is_named(limits, name):
    with pytest.raises(UsageError, match=f"--subtitle_{name}"):
        SubtitleRules(**limits)
