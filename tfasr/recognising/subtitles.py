"""Groups recognised words into subtitles that people can read.

`tfasr.recognising.files` writes them as SubRip and WebVTT.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tfasr.alphabet import clusters, join_words
from tfasr.errors import UsageError
from tfasr.recognising.spec import Word

# A pause of this length, in seconds, ends a subtitle that has been shown long enough.
_PAUSE_S = 0.8

# The highest value of every limit; more would be a mistake.
_MOST = 10_000


@dataclass(frozen=True)
class SubtitleRules:
    """Limits of a subtitle, all of which hold for every one.

    The defaults are usual for television and streaming in Latin scripts.

    Attributes:
        characters: of a line, each with its combining marks.
        lines: of a subtitle.
        shortest_s: how long a subtitle is shown at least.
        longest_s: how long a subtitle is shown at most.

    Raises:
        UsageError: if a limit isn't positive, or the longest time is shorter than the
        shortest.

    Source: Netflix, "Timed Text Style Guide: General Requirements" (two lines, 42
    characters, at most 7 s).
    """

    characters: int = 42
    lines: int = 2
    shortest_s: float = 1.0
    longest_s: float = 7.0

    def __post_init__(self):
        for name in ("characters", "lines", "shortest_s", "longest_s"):
            value = getattr(self, name)
            if not 0 < value <= _MOST:
                raise UsageError(
                    f"--subtitle_{name} must be more than 0, at most {_MOST}. "
                    f"Received: {value}."
                )

        if self.longest_s < self.shortest_s:
            raise UsageError(
                "--subtitle_longest_s must be at least --subtitle_shortest_s. "
                f"Received: {self.longest_s:g} and {self.shortest_s:g}."
            )


@dataclass(frozen=True)
class Cue:
    """A subtitle.

    Attributes:
        start_s: when it appears, in seconds from the recording's start.
        end_s: when it disappears.
        lines: its text.
    """

    start_s: float
    end_s: float
    lines: list[str]


def subtitles(words: Iterable[Word], rules: SubtitleRules) -> list[Cue]:
    """Returns cues in order, none of which overlap.

    A pause ends a cue, and so do the limits on text and time. A short cue stays until
    it has been shown for the shortest time, which delays the next one if speech is that
    fast.

    Args:
        words: of a transcript, in order.
        rules: the limits.
    """
    groups: list[list[Word]] = []
    for word in _in_pieces(words, rules):
        if groups and _goes_on(groups[-1], word, rules):
            groups[-1].append(word)
        else:
            groups.append([word])

    cues: list[Cue] = []
    for number, group in enumerate(groups):
        start_s = max(group[0].start_s, cues[-1].end_s if cues else 0.0)
        following_s = math.inf
        if number + 1 < len(groups):
            following_s = groups[number + 1][0].start_s

        # It stays while its words are spoken, and long enough to be read.
        spoken_until_s = max(word.end_s for word in group)
        end_s = min(spoken_until_s, following_s, start_s + rules.longest_s)
        end_s = max(end_s, start_s + rules.shortest_s)
        cues.append(Cue(start_s, end_s, _wrapped(group, rules)))

    return cues


def _goes_on(group: list[Word], word: Word, rules: SubtitleRules) -> bool:
    """Whether a word belongs to the same cue as the words before it."""
    was_shown = word.start_s - group[0].start_s >= rules.shortest_s
    pause_s = word.start_s - max(before.end_s for before in group)
    if pause_s >= _PAUSE_S and was_shown:
        return False

    too_long = word.end_s - group[0].start_s > rules.longest_s

    return not too_long and len(_wrapped([*group, word], rules)) <= rules.lines


def _wrapped(words: list[Word], rules: SubtitleRules) -> list[str]:
    """Returns the words in lines of at most so many characters."""
    lines = [words[0].text]
    for word in words[1:]:
        longer = join_words([lines[-1], word.text])
        if len(clusters(longer)) <= rules.characters:
            lines[-1] = longer
        else:
            lines.append(word.text)

    return lines


def _in_pieces(words: Iterable[Word], rules: SubtitleRules) -> Iterable[Word]:
    """Yields the words; those longer than a line in pieces that share the word's time."""
    for word in words:
        letters = clusters(word.text)
        size = rules.characters
        if len(letters) <= size:
            yield word
            continue

        per_letter_s = (word.end_s - word.start_s) / len(letters)
        for first in range(0, len(letters), size):
            piece = letters[first : first + size]
            start_s = word.start_s + first * per_letter_s
            end_s = start_s + len(piece) * per_letter_s
            yield Word("".join(piece), start_s, end_s, word.confidence)
