import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfasr
from tests.reports.conftest import COMPARABLE, ledger_of, objects
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.errors import RunError, UsageError
from tfasr.reports.groups import group_name
from tfasr.reports.numbers import (
    analyse_run,
    ask,
    difference_text,
    differences,
    distinct_names,
    merged_targets,
    target_label,
)
from tfasr.tta.comparison import ESTIMAND
from tfasr.tta.metrics import parse_target
from tfasr.tta.run import load_run


def test_equal_runs_do_not_differ():
    assert differences({"a": [1, 2]}, {"a": [1, 2]}) == {}
    assert differences(None, None) == {}


def test_what_differs_is_named_with_both_values():
    result = differences(
        {"beam_width": 8, "split": "x"}, {"beam_width": 256, "lexicon": None}
    )

    assert result == {
        "beam_width": ("8", "256"),
        "split": ('"x"', "not stated"),
        "lexicon": ("not stated", "null"),
    }
    assert difference_text({"beam_width": ("8", "256")}) == "beam_width (8, here 256)"


def test_a_run_that_states_nothing_is_not_comparable_with_one_that_does():
    assert differences(None, {"a": 1}) == {"comparability": ("not stated", "stated")}
    assert differences({"a": 1}, None) == {"comparability": ("stated", "not stated")}


def test_a_long_value_is_shortened():
    (first, _) = differences({"text": "x" * 500}, {"text": "y"})["text"]

    assert len(first) == 60


PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "data" / "published"
published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published logs are not beside the repository"
)


def seeds(folder, name, train_s, *, count=3, epochs=5):
    """Runs of one configuration whose steps differ a little in time."""
    run_dirs = []
    for seed in range(count):
        cers = [0.5, *[0.1] * (epochs - 1)]
        run_dir = ledger_of(cers, train_s=train_s * (1 + 0.01 * seed)).write(
            folder / f"{name}-seed{seed}"
        )
        (run_dir / "config.gin").write_text(f"batch = '{name}'\ntrain.seed = {seed}\n")
        run_dirs.append(run_dir)

    return run_dirs


def groups(*paths, policy="paper", **options):
    """The report as JSON by group: naming a policy asks for groups."""
    return objects(*paths, policy=policy, **options)


@pytest.fixture
def small_and_large(tmp_path):
    """Groups of four seeds, of which the large one takes four times as long a step."""
    small = seeds(tmp_path, "small", 1.0, count=4)
    large = seeds(tmp_path, "large", 4.0, count=4)
    return groups(*small, *large)


def test_runs_of_one_configuration_form_a_group_whatever_their_seed(small_and_large):
    assert [(one["group"], one["n"], one["reached"]) for one in small_and_large] == [
        ("small", 4, 4),
        ("large", 4, 4),
    ]

    small, large = small_and_large

    assert small["time_to_accuracy_s"] == pytest.approx([8.0, 8.06, 8.12, 8.18])
    assert small["median_s"] == pytest.approx(8.09)
    assert small["mean_without_extremes_s"] is None
    # The rule is met at the third epoch, and the second is the one that it is about.
    assert small["bracket"][0] == pytest.approx([4.0, 6.0])
    assert small["against_first"] is small["factors"] is None


def test_the_ratio_of_two_groups_is_of_the_middles_of_their_brackets(small_and_large):
    small, large = small_and_large

    # Misses at 4 and 10 s, hits at 6 and 18 s; the rule is met at 8 and 26 s.
    ratio = math.sqrt(10 * 18) / math.sqrt(4 * 6)

    assert large["against_first"]["ratio"] == pytest.approx(ratio, rel=0.01)
    assert large["against_first"]["ratio_by_rule"] == pytest.approx(
        26.36 / 8.09, rel=0.01
    )
    assert small["bracket_s"] == pytest.approx(2.03)
    assert large["bracket_s"] == pytest.approx(8.12)
    assert large["against_first"]["sooner"] == "first"


def test_the_interval_of_a_ratio_holds_it(small_and_large):
    small, large = small_and_large

    low, high = large["against_first"]["interval"]
    assert 1 < low < large["against_first"]["ratio"] < high


def test_slower_steps_are_a_factor_of_the_hardware(small_and_large):
    small, large = small_and_large

    factors = large["factors"]["factors"]

    assert factors["hardware_throughput"] > 1.5
    assert factors["statistical_efficiency"] == pytest.approx(1)


def test_a_folder_of_runs_is_a_group(tmp_path, large):
    seeds(tmp_path / "mine", "run", 1.0, count=2)
    result = groups(tmp_path / "mine", large)

    assert [(one["group"], one["n"]) for one in result] == [
        ("mine/run", 2),
        ("large", 1),
    ]
    assert result[0]["runs"] == ["mine/run-seed0", "mine/run-seed1"]


def of_seeds(folder, name, paces):
    """Runs of one group, of which each seed has its own pace."""
    run_dirs = []
    for seed, pace in paces.items():
        ledger = ledger_of([0.9 * 0.8**n for n in range(1, 30)], train_s=pace).event(
            "seed", seed
        )
        run_dirs.append(ledger.write(folder / f"{name}-seed{seed}"))
        (run_dirs[-1] / "config.gin").write_text(f"batch = '{name}'\nseed = {seed}\n")

    return run_dirs


def test_runs_of_equal_seeds_are_compared_by_pairs_too(tmp_path):
    paces = {seed: 1 + 0.2 * (seed % 4) for seed in range(1, 8)}
    slower = {seed: 1.15 * pace for seed, pace in paces.items() if seed > 1}

    runs = of_seeds(tmp_path, "plain", paces) + of_seeds(tmp_path, "slowed", slower)

    assert "undecided: slowed takes" in " ".join(report(runs).split())

    comparison = tfasr.compare(runs, test="pairs").results[0][1].comparison

    assert (comparison.test, comparison.sooner, comparison.pairs) == (
        "pairs",
        "first",
        6,
    )
    assert comparison.interval[0] < 1.15 < comparison.interval[1] < 1.3

    (shown,) = tfasr.compare(runs, test="pairs").findings

    assert "plain is faster: slowed takes" in shown
    assert "signed-rank test p = 0.031 (n = 7 and 6, 6 pairs of equal seeds)" in shown

    two_of_each = [runs[0], runs[2], runs[7], runs[8]]
    (few,) = tfasr.compare(two_of_each, test="pairs").findings

    assert (
        "too few runs for an interval or a test (n = 2 and 2, 1 pairs of equal seeds)"
        in few
    )
    with pytest.raises(UsageError, match="The test must be one of groups, pairs"):
        tfasr.compare(runs, test="luck")


def test_two_runs_in_each_group_are_too_few_for_an_interval(tmp_path):
    two = report(
        [
            *seeds(tmp_path, "small", 1.0, count=2),
            *seeds(tmp_path, "large", 4.0, count=2),
        ]
    )
    assert "too few runs for an interval or a test (n = 2 and 2)" in " ".join(
        two.split()
    )


def test_five_runs_in_each_group_allow_an_interval_and_a_test(tmp_path):
    run_dirs = [
        *seeds(tmp_path, "small", 1.0, count=5),
        *seeds(tmp_path, "large", 4.0, count=5),
    ]
    five = " ".join(report(run_dirs, power=True, out=tmp_path / "out").split())
    # Written afresh from the ledgers: misses at 4 and 10 s, hits at 6 and 18 s,
    # initialisation 2 s.
    late = 1 + 0.01 * np.arange(5)
    least = np.sort(np.divide.outer(2 + 8 * late, 2 + 4 * late).ravel())
    greatest = np.sort(np.divide.outer(2 + 16 * late, 2 + 2 * late).ravel())
    # The third of the 25 ratios from each end: Mann and Whitney's table has 2 for 5 and
    # 5 runs.
    interval = f"{least[2]:.2f} to {greatest[-3]:.2f}"
    expected = (
        "small is faster: large takes 2.75 times as long as small "
        f"(95 % interval {interval})"
    )

    assert f"CER 10 %: {expected}; Mann-Whitney test p = 0.0079 (n = 5 and 5)" in five
    assert "of the times at which the rule was met, the ratio is 3.26" in five
    assert "large has 0.25 times the steady throughput" in five
    assert "no number of runs would show a gap of 10 %: evaluate more often" in five
    assert ESTIMAND["groups"] in five
    assert "Why: CER 10 %, factors of the time of small" in five

    page = (tmp_path / "out" / "report.html").read_text()
    flat = page.replace("\u00a0", " ")

    assert (
        "To CER 10 %, small needs 8.12 s, large 26.5 s: 3.3 times sooner, decided by 5 "
        "runs each."
    ) in flat
    assert "large takes 2.75 times as long as small" in page
    # A group has one colour and one entry in a legend: error rates, loss, throughput of
    # both kinds.
    assert page.count(">small (n = 5)</text>") == 5


def test_all_policies_are_shown_beside_the_one_that_was_asked_for(small):
    text = report([small], policy="mlperf")
    assert "CER 10 % under each clock policy, minutes" in text

    rows = [line.split() for line in text.splitlines()]
    # 8 s on the paper's clock; the first crossing is in the second epoch, 4 s after
    # run_start.
    assert ["small", "0.133", "0.067", "0.067", "0.100"] in rows


def test_groups_state_the_policy_and_window_of_their_times(small):
    (result,) = groups(small, policy="mlperf")
    assert result["policy"] == "mlperf"
    assert result["window"] == 1
    assert result["time_to_accuracy_s"] == [4.0]


def test_unlike_groups_are_refused_a_comparison(tmp_path, small):
    other = ledger_of([0.1] * 3, comparability={"beam_width": 256}).write(
        tmp_path / "other"
    )

    assert groups(small, other)[1]["against_first"] is None
    assert groups(small, other, force=True)[1]["against_first"]["ratio_by_rule"] == 1.0


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["batch8-seed1", "batch8-seed2"], "batch8"),
        (["x/result_1", "x/result_10"], "x"),
        (["a", "b"], "a and 1 more"),
        (["alone-1"], "alone-1"),
        (["lstm_256_r1", "lstm_256_r2"], "lstm_256"),
    ],
)
def test_a_group_is_called_what_its_runs_begin_with(names, group):
    assert group_name(names) == group


@published
def test_mlperfs_published_answers_through_the_command():
    folders = [
        PUBLISHED / "mlperf_v3.1_rnnt_8xH100_NVIDIA",
        PUBLISHED / "mlperf_v3.1_rnnt_6xL4_xFusion",
    ]
    result = groups(*folders, policy="mlperf", targets=["wer=0.058"])

    assert [round(one["mean_without_extremes_s"] / 60, 3) for one in result] == [
        16.686,
        183.567,
    ]
    assert [one["n"] for one in result] == [10, 10]


@published
def test_algoperfs_published_answer_through_the_command():
    study = PUBLISHED / "algoperf_v0.5_deepspeech_baseline_8xV100"
    (result,) = groups(study, policy="algoperf", targets=["wer=0.119936"])

    rounded = [time and round(time) for time in result["time_to_accuracy_s"]]

    assert rounded == [36051, 36051, 36049, None, 36047]
    assert result["bracket"][3][1] is None


def test_a_name_is_as_long_as_it_must_be():
    paths = [Path("/x/a/run"), Path("/x/b/run"), Path("/y/b/run"), Path("/x/other")]

    assert distinct_names(paths) == ["a/run", "x/b/run", "y/b/run", "other"]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), unique_by=tuple)
)
def test_different_folders_have_different_names(folders):
    names = distinct_names([Path("/", *folder) for folder in folders])

    assert len(set(names)) == len(folders)


def test_targets_are_fractions():
    assert parse_target("cer=0.10") == ("cer", 0.1)
    assert parse_target("loss=30") == ("loss", 30.0)


@pytest.mark.parametrize("text", ["cer", "cer=", "cer=ten", "=0.1", "bleu=0.1", ""])
def test_a_target_written_otherwise_is_refused(text):
    with pytest.raises(UsageError, match="A target"):
        parse_target(text)


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("cer=10", "a fraction between 0 and 1"),
        ("wer=-0.1", "a fraction between 0 and 1"),
        ("accuracy=98", "a fraction between 0 and 1"),
        ("cer=nan", "a fraction between 0 and 1"),
        ("loss=inf", "a finite number"),
    ],
)
def test_a_target_no_run_could_mean_is_refused(text, must):
    with pytest.raises(UsageError, match=f"must be {must}"):
        parse_target(text)


def test_targets_of_all_runs_once_in_order():
    merged = merged_targets(
        [[("wer", 0.2), ("cer", 0.07)], [("cer", 0.1), ("cer", 0.07)]]
    )
    assert merged == [("cer", 0.1), ("cer", 0.07), ("wer", 0.2)]


def test_targets_of_a_metric_that_rises_begin_with_the_lowest():
    easiest_first = [("accuracy", 0.9), ("accuracy", 0.95)]
    assert merged_targets([easiest_first[::-1]]) == easiest_first


def test_people_read_percent():
    assert target_label("wer", 0.202) == "WER 20.2 %"
    assert target_label("loss", 3.5) == "loss 3.5"
    assert target_label("accuracy", 0.9) == "accuracy 90 %"


def test_json_has_an_object_for_each_run_and_target(small, large):
    result = objects(small, large, targets=["cer=0.10", ("cer", 0.05)])

    assert [(one["run"], one["metric"], one["target"]) for one in result] == [
        ("small", "cer", 0.1),
        ("small", "cer", 0.05),
        ("large", "cer", 0.1),
        ("large", "cer", 0.05),
    ]
    assert [one["time_to_accuracy_s"] for one in result] == [8.0, None, 12.0, None]
    assert [one["epoch"] for one in result] == [3, None, 5, None]
    assert [one["relative"] for one in result] == [1.0, None, 1.5, None]
    assert [one["wall_s"] for one in result] == [8.0, 8.0, 12.0, 12.0]
    assert [one["train_s"] for one in result] == [6.0, 6.0, 10.0, 10.0]
    assert result[0]["eval_s"] == 0.0
    assert result[1]["until_target"] is None


def test_times_until_the_target_and_of_the_whole_run(tmp_path):
    ledger = LedgerBuilder().begin(init_s=2, targets=[["cer", 0.1]])
    for epoch in range(1, 6):
        ledger.epoch(epoch, 0.1, wait_s=0.5, forward_s=3, decode_s=4)
        if epoch == 1:
            ledger.checkpoint(1).step(8)

            ledger.resume(down_s=100, from_step=2, init_s=2)

    (result,) = objects(ledger.end().write(tmp_path / "run"))

    assert result["time_to_accuracy_s"] == 2 + 10 + 1 + 8 + 2 + 2 * 10
    assert result["train_s"] == 15.0
    assert result["eval_s"] == 35.0
    assert result["lost_work_s"] == 8.0
    assert result["wall_s"] == sum(result["intervals_s"].values()) == 63.0

    until = result["until_target"]

    assert (until["train_s"], until["eval_s"], until["wall_s"]) == (9.0, 21.0, 43.0)
    assert result["sessions"] == 2
    assert "8.0 s of lost work" in result["notes"][0]


def test_targets_default_to_those_of_all_runs(small, tmp_path):
    other = ledger_of([0.5], targets=[["wer", 0.2], ["cer", 0.08]]).write(
        tmp_path / "other"
    )
    result = [(one["metric"], one["target"]) for one in objects(small, other)]

    assert result == [("cer", 0.1), ("cer", 0.08), ("wer", 0.2)] * 2


def test_the_table_and_markdown_say_the_same(small, large):
    text = report([small, large], targets=["cer=0.1", "wer=0.1"])
    rows = [line.split() for line in text.splitlines()]
    small_row = ["small", "0.133", "0.067–0.100", "3", "100", "%"]

    assert [*small_row, "NA", ">", "0.100", "NA", "NA", "3"] in rows

    large_row = ["large", "0.200", "0.133–0.167", "5", "150", "%"]
    assert [*large_row, "NA", ">", "0.167", "NA", "NA", "5"] in rows

    markdown = report(
        [small, large], output_format="markdown", targets=["cer=0.1", "wer=0.1"]
    )
    row = "| large | 0.200 | 0.133–0.167 | 5 | 150 % | NA | \\> 0.167 | NA | NA | 5 |"

    assert row in markdown.splitlines()

    for said in (text, markdown):
        flat = " ".join(said.split())

        assert "median of the last 3 evaluations" in flat
        assert "warm-up steps left out" in flat or "warm-up steps tracing steps" in flat


def test_another_window_is_computed_and_said(small):
    assert objects(small, window=1)[0]["epoch"] == 2

    expected = "here, by request, the median of the last 1"
    assert expected in " ".join(report([small], window=1).split())


def test_unlike_runs_are_refused_a_comparison_by_name_of_what_differs(small, tmp_path):
    unlike = COMPARABLE | {"beam_width": 256}
    other = ledger_of([0.1] * 3, comparability=unlike).write(tmp_path / "other")

    text = " ".join(report([small, other]).split())

    assert "refused" in text
    assert (
        "other is not compared with small: they differ in beam_width (8, here 256)"
        in text
    )
    refused = objects(small, other)[1]
    assert refused["relative"] is None
    assert refused["differs_from_first"] == {"beam_width": ["8", "256"]}


def test_unlike_runs_are_compared_by_force_and_it_is_said(small, tmp_path):
    unlike = COMPARABLE | {"beam_width": 256}
    other = ledger_of([0.1] * 3, comparability=unlike).write(tmp_path / "other")

    forced = " ".join(report([small, other], force=True).split())

    assert "refused" not in forced
    assert "by force: they differ in beam_width (8, here 256)" in forced
    assert objects(small, other, force=True)[1]["relative"] == 1.0


def test_a_refusal_names_settings_by_value_and_hashes_by_what_they_are_of(
    small, tmp_path
):
    decoder = {
        "name": "word_beam",
        "lexicon_weight": 1.0,
        "smoothing": 0.01,
        "beam_width": 8,
    }
    hashes = {"validation_references": "0123456789abcdef", "hash": "fedcba9876543210"}
    about = {"decoder": decoder, **hashes}
    other = {
        "decoder": decoder | {"beam_width": 64},
        **dict.fromkeys(hashes, "a1b2c3d4e5f60718"),
    }
    first = ledger_of([0.1] * 3, comparability=about).write(tmp_path / "first")
    second = ledger_of([0.1] * 3, comparability=other).write(tmp_path / "second")

    text = " ".join(report([first, second]).split())

    assert "decoder.beam_width (8, here 64)" in text
    assert "transcripts" in text
    for value in (*hashes.values(), "a1b2c3d4e5f60718"):
        assert value not in text

    shown = objects(first, second)[1]["differs_from_first"]
    assert shown["validation_references"] == [
        '"0123456789abcdef"',
        '"a1b2c3d4e5f60718"',
    ]


def test_long_values_that_differ_are_cut_to_where_they_differ(small):
    # Values that begin alike are cut to where they differ.
    long = differences({"text": "x" * 200 + "a"}, {"text": "x" * 200 + "b"})["text"]
    assert long[0] != long[1]


def test_the_headline_counts_runs_that_may_not_be_compared(small, tmp_path):
    pytest.importorskip("vl_convert")
    unlike = COMPARABLE | {"beam_width": 256}
    never = ledger_of([0.9] * 3).write(tmp_path / "never")
    reached = ledger_of([0.5, 0.1, 0.1], comparability=unlike).write(
        tmp_path / "reached"
    )
    report([never, reached], out=tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()

    (verdict,) = re.findall(r'<p class="verdict">(.*?)</p>', page)

    assert verdict.replace("\u00a0", " ") == (
        "To CER 10 %, reached needs 8 s; 0 of 1 runs of never got there within 8 s: "
        "not comparable, as they differ in beam_width (8, here 256)."
    )


def reported_spread(folder, seconds, epochs):
    """What the report says of three seeds with these times of a step and epochs.

    Returns the percent by which the seconds per utterance vary, those by which the
    utterances to the target vary, and whom the spread is due to.
    """
    for seed, (train_s, count) in enumerate(zip(seconds, epochs, strict=True)):
        cers = [0.5] * (count - 2) + [0.1, 0.1]
        run_dir = ledger_of(cers, train_s=train_s).write(folder / f"seed{seed}")
        (run_dir / "config.gin").write_text(f"train.seed = {seed}\n")

    text = " ".join(report([folder]).split())
    result = re.search(
        r"the 3 times vary by [\d.]+ % .* seconds per utterance vary by ([\d.]+) %.* "
        r"utterances to the target vary by ([\d.]+) %.* due to (the host|the seeds|both)",
        text,
    )
    return float(result[1]), float(result[2]), result[3]


def test_a_spread_of_the_steps_times_is_due_to_the_host(tmp_path):
    by_host, by_seeds, whose = reported_spread(
        tmp_path / "group", seconds=[1.0, 1.3, 0.8], epochs=[10, 10, 10]
    )

    assert by_host > 15
    assert by_seeds == 0
    assert whose == "the host"


def test_a_spread_of_the_epochs_is_due_to_the_seeds(tmp_path):
    by_host, by_seeds, whose = reported_spread(
        tmp_path / "group", seconds=[1.0, 1.0, 1.0], epochs=[8, 10, 13]
    )

    assert by_host < 3
    assert by_seeds > 15
    assert whose == "the seeds"


def test_nothing_is_relative_to_a_run_that_never_reached_the_target(large, tmp_path):
    never = ledger_of([0.9] * 3).write(tmp_path / "never")

    assert [one["relative"] for one in objects(never, large)] == [None, None]


def test_folders_of_one_name_are_told_apart(tmp_path):
    for parent in "ab":
        ledger_of([0.1] * 3).write(tmp_path / parent / "run")

    result = objects(tmp_path / "a" / "run", tmp_path / "b" / "run")

    assert [one["run"] for one in result] == ["a/run", "b/run"]


def test_a_folder_named_twice_stands_once_and_is_said(small):
    assert len(objects(small, small.parent / "." / "small")) == 1
    assert "named twice" in report([small, small])


def test_a_run_without_evaluation_has_no_time(tmp_path):
    run_dir = LedgerBuilder().begin(init_s=1).step(2).write(tmp_path / "run")
    (result,) = objects(run_dir, targets=["cer=0.1"], out=tmp_path / "out")

    assert result["time_to_accuracy_s"] is None
    assert result["notes"] == ["it has no finished evaluation", "the run is unfinished"]
    assert not (tmp_path / "out" / "cer.png").exists()


def test_a_run_that_set_no_targets_is_listed_once(tmp_path):
    run_dir = ledger_of([0.1] * 3, targets=None).write(tmp_path / "run")
    (result,) = objects(run_dir)

    assert result["metric"] is None
    assert result["target"] is None
    assert result["time_to_accuracy_s"] is None
    assert "Name them, such as --target cer=0.10" in report([run_dir])


def test_a_diverged_run_is_still_json(tmp_path):
    run_dir = ledger_of([float("nan")] * 3).write(tmp_path / "run")

    assert objects(run_dir, out=tmp_path / "out")[0]["time_to_accuracy_s"] is None


def test_a_cut_ledger_is_used_and_said(small):
    with (small / "events.jsonl").open("a") as file:
        file.write('{"key"')

    assert "a crash cut the ledger's last line" in report([small])


def test_wrong_use_says_what_is_wrong(small, tmp_path):
    with pytest.raises(UsageError, match="at least one run folder"):
        report([])
    with pytest.raises(UsageError, match="does not exist"):
        report([small, tmp_path / "nowhere"])

    (tmp_path / "empty").mkdir()

    with pytest.raises(UsageError, match=r"events\.jsonl.*empty"):
        report([tmp_path / "empty"])
    with pytest.raises(UsageError, match="There is no policy"):
        report([small], policy="mine")
    with pytest.raises(UsageError, match="format must be one of"):
        report([small], output_format="xml")
    with pytest.raises(UsageError, match="window must be at least 1"):
        report([small], window=0)
    with pytest.raises(UsageError, match="fraction between 0 and 1"):
        report([small], targets=["cer=10"])
    with pytest.raises(RunError, match="can't be written to .* Choose another --out"):
        report([small], out=small / "events.jsonl" / "below")


COMMAND = """
import argparse, sys
from tfasr.commands import report
import tfasr.tta.run
plotting = [name for name in ("matplotlib", "vl_convert") if name in sys.modules]
parser = argparse.ArgumentParser()
report.add_arguments(parser)
status = report.run(parser.parse_args())
slow = ("tensorflow", "keras", "matplotlib.pyplot")
loaded = plotting + [name for name in slow if name in sys.modules]
sys.exit(f"loaded {loaded}" if loaded else status)
"""


def test_the_command_prints_json_alone_and_never_loads_tensorflow(
    small, large, tmp_path
):
    arguments = [
        small,
        large,
        "--format",
        "json",
        "--target",
        "cer=0.1",
        "--out",
        tmp_path / "o",
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [one["run"] for one in json.loads(done.stdout)] == ["small", "large"]
    assert (tmp_path / "o" / "report.html").is_file()


def test_the_time_until_a_target_ends_at_the_evaluation_that_met_it(tmp_path):
    run = load_run(ledger_of([0.5, 0.1, 0.1, 0.1, 0.1]).write(tmp_path / "run"))
    (analysis,) = analyse_run(run, ask(["cer=0.1"])).results

    assert (analysis.tta.seconds, analysis.tta.epoch) == (8.0, 3)
    assert math.fsum(analysis.until_s.values()) == 8.0
    assert analysis.parts.total_s == 8.0
