import math
import statistics

import pytest

from tfasr.scoring.errors import Transcript, count_errors, score
from tfasr.scoring.summary import speaker_rows, summarise_scored, summary_rows

TEXTS = [
    ("u1", "a b c d", "a b c d", "bob"),
    ("u2", "a b", "a x", "ann"),
    ("u3", "a b c d", "a c d e", "ann"),
    ("u4", "a b c d", "a", "eve"),
]


@pytest.fixture
def scored():
    return score(Transcript(*text) for text in TEXTS)


def test_a_row_for_each_speaker(scored):
    ann, bob, eve = speaker_rows(scored)
    assert (ann.name, ann.utterances, ann.words) == ("ann", 2, 6)
    # b -> x; b left out and e added.
    assert ann.rates == pytest.approx(
        {"correct": 4 / 6, "substitutions": 1 / 6, "deletions": 1 / 6, "insertions": 1 / 6,
         "errors": 3 / 6, "wrong_utterances": 1.0}
    )  # fmt: skip
    assert (bob.name, bob.rates["errors"], bob.rates["wrong_utterances"]) == ("bob", 0, 0)
    assert (eve.name, eve.rates["errors"], eve.rates["deletions"]) == ("eve", 0.75, 0.75)


def test_the_sum_is_over_words_and_the_mean_over_speakers(scored):
    total, mean, deviation, median = summary_rows(scored, speaker_rows(scored))
    assert (total.utterances, total.words) == (4, 14)
    assert total.rates["errors"] == pytest.approx(6 / 14)
    rates = [0.5, 0, 0.75]
    assert (mean.name, mean.rates["errors"]) == ("Mean", pytest.approx(1.25 / 3))
    assert deviation.rates["errors"] == pytest.approx(statistics.stdev(rates))
    assert (median.rates["errors"], median.words) == (0.5, 4)


def test_unknown_speakers_have_no_rows_and_one_speaker_no_mean():
    unknown = score([Transcript("u1", "a", "a"), Transcript("u2", "b", "c")])
    assert speaker_rows(unknown) == []
    assert [row.name for row in summary_rows(unknown, [])] == ["Sum/Avg"]
    known = score([Transcript("u1", "a", "a", "ann")])
    assert [row.name for row in summary_rows(known, speaker_rows(known))] == ["Sum/Avg"]
    mixed = score([Transcript("u1", "a", "a", "ann"), Transcript("u2", "b", "c")])
    assert [row.name for row in speaker_rows(mixed)] == ["(unknown)", "ann"]


def test_a_speaker_without_words_has_no_rate():
    silent = score([Transcript("u1", "", "a", "ann"), Transcript("u2", "b", "b", "bob")])
    rows = speaker_rows(silent)
    assert math.isnan(rows[0].rates["errors"])
    assert math.isnan(summary_rows(silent, rows)[1].rates["errors"])


def test_a_summary_has_the_rates_of_metrics_and_intervals_around_them(scored):
    found = summarise_scored(scored)
    assert found.counts == count_errors([t[1] for t in TEXTS], [t[2] for t in TEXTS])
    assert found.wer_interval[0] <= found.counts.wer <= found.wer_interval[1]
    assert found.cer_interval[0] <= found.counts.cer <= found.cer_interval[1]
    assert found.wer_interval_by_speaker is None  # three speakers
    written = found.to_json()
    assert written["wer"] == found.counts.wer
    assert (written["confidence"], written["wer_interval"]) == (0.95, found.wer_interval)
