from pathlib import Path

import pytest

from tests.scoring.test_paired import FIRST, SECOND, heard
from tfasr.scoring.summary import compare_pairs, probability_text, summarise_scored

DOCUMENT = Path(__file__).parents[2] / "docs" / "error_statistics.md"


def percent(interval):
    return " to ".join(f"{100 * end:.1f}" for end in interval)


def test_the_documents_example_is_what_is_computed():
    text = " ".join(DOCUMENT.read_text().split())
    one, two = summarise_scored(heard(FIRST)), summarise_scored(heard(SECOND))
    found = compare_pairs(heard(FIRST), heard(SECOND))
    assert ", ".join(map(str, FIRST)) in text
    assert ", ".join(map(str, SECOND)) in text
    assert f"24 / 40 = {one.counts.wer:.1%}".replace("%", " %") in text
    assert f"16 / 40 = {two.counts.wer:.1%}".replace("%", " %") in text
    assert f"{percent(one.wer_interval)} % and {percent(two.wer_interval)} %" in text
    assert f"= {found.matched_pairs_z:.2f}`; p = {found.matched_pairs_p:.3f}" in text
    assert f"is {100 * found.wer_difference:.1f} points" in text
    assert f"interval {percent(found.by_utterance.interval)}:" in text
    assert found.permutation_p == pytest.approx(2 / 32)
    assert f"permutation p = 2 / 32 = {probability_text(found.permutation_p)}" in text
