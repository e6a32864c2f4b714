"""What counts as the same utterance in two splits."""

import pytest

from tfasr.data.manifest import HeldUtterances, ShardedUtterance
from tfasr.data.prepare_corpus import Overlap
from tfasr.data.prepare_corpus import overlap as overlap_of_held


def overlap(training: list, held_out: list) -> Overlap:
    return overlap_of_held(HeldUtterances(training), HeldUtterances(held_out))


def utterance(name, content, speaker="", text="yes"):
    return ShardedUtterance(0, name, text, speaker, 1.0, 98, 3, content)


def test_equal_features_are_one_utterance_whatever_they_are_called():
    found = overlap([utterance("a", "1f")], [utterance("b", "1f"), utterance("c", "2e")])
    assert (found.utterances, found.of_utterances) == (["b"], 2)


@pytest.mark.parametrize("name", ["a", "other"])
def test_without_features_a_short_word_of_equal_length_is_another_utterance(name):
    found = overlap([utterance("a", "")], [utterance(name, "")])
    assert found.utterances == (["a"] if name == "a" else [])


def test_speakers_are_counted_by_name():
    training = [utterance("a", "1", "ann"), utterance("b", "2")]
    found = overlap(training, [utterance("c", "3", "ann"), utterance("d", "4", "bob")])
    assert (found.speakers, found.of_speakers, found.utterances) == (["ann"], 2, [])
