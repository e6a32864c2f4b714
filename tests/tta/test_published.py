import json
from pathlib import Path

import pytest

from tests.tta.ledger_builder import LedgerBuilder, step_numbers
from tfasr.errors import UsageError
from tfasr.tta.policies import POLICIES
from tfasr.tta.published import algoperf, dawnbench, find_logs, load_log, mlperf

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "data" / "published"
published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published logs are not beside the repository"
)


def time_s(run, target, name, metric="wer"):
    result, _ = POLICIES[name].time_to_accuracy(run.timeline, target, metric=metric)
    return result.seconds


@published
@pytest.mark.parametrize(
    ("folder", "minutes"),
    [
        ("mlperf_v3.1_rnnt_8xH100_NVIDIA", 16.686),
        ("mlperf_v3.1_rnnt_6xL4_xFusion", 183.567),
    ],
)
def test_mlperfs_published_results_are_computed_from_its_logs(folder, minutes):
    logs = find_logs(PUBLISHED / folder)
    times = sorted(time_s(load_log(log), 0.058, "mlperf") for log in logs)

    assert len(times) == 10
    assert round(sum(times[1:-1]) / 8 / 60, 3) == minutes


@published
def test_algoperfs_published_results_are_computed_from_its_logs():
    logs = find_logs(PUBLISHED / "algoperf_v0.5_deepspeech_baseline_8xV100")
    times = [time_s(load_log(log), 0.119936, "algoperf") for log in logs]

    assert [t and round(t) for t in times] == [36051, 36051, 36049, None, 36047]

    # Evaluation counts elsewhere: the same rows' total durations are 10 % longer.
    totals = [time_s(load_log(log), 0.119936, "mlperf") for log in logs]

    assert totals.pop(3) is None
    assert totals == pytest.approx([39636.6, 39456.9, 39515.1, 39651.3], abs=0.2)


def mllog(tmp_path, *lines, name="result_0.txt"):
    """Writes lines of MLPerf's format among others."""
    path = tmp_path / name
    path.write_text("noise\n" + "".join(f":::MLLOG {line}\n" for line in lines))
    return path


def test_lines_of_several_processes_are_put_in_order(tmp_path):
    path = mllog(
        tmp_path,
        '{"key": "run_start", "time_ms": 5000}',
        '{"key": "eval_stop", "time_ms": 9000, "metadata": {"epoch_num": 1}}',
        '{"key": "eval_accuracy", "time_ms": 8000, "value": 0.5, "metadata": {"epoch_num": 1}}',
    )

    assert time_s(load_log(path), 0.5, "mlperf") == 4.0


@published
def test_mlperfs_epochs_are_training_and_its_evaluations_evaluation():
    run = load_log(PUBLISHED / "mlperf_v3.1_rnnt_8xH100_NVIDIA" / "result_0.txt")
    spent = run.intervals

    assert spent["init"] == pytest.approx(48.7, abs=0.1)
    assert spent["train"] == pytest.approx(960, abs=10)
    assert 0 < spent["eval_forward"] < 30

    # 48 epochs of the samples the log states, in the time of its epochs.
    samples = run.fact("train_samples")
    assert run.throughput(0).utterances_per_s == pytest.approx(
        48 * samples / spent["train"]
    )


def test_a_log_of_another_benchmark_is_refused(tmp_path):
    line = '{"key": "submission_benchmark", "time_ms": 1, "value": "resnet"}'

    with pytest.raises(UsageError, match="must be a word error rate.*'resnet'"):
        load_log(mllog(tmp_path, line))


def test_a_broken_line_is_named_and_a_cut_one_left_out(tmp_path):
    good = '{"key": "run_start", "time_ms": 1}'
    run = load_log(mllog(tmp_path, good, '{"key": "run_s'))

    assert (len(run.events), run.cut) == (1, True)
    with pytest.raises(UsageError, match="Line 2 "):
        load_log(mllog(tmp_path, '{"key": "run_s', good))
    with pytest.raises(UsageError, match="no complete"):
        load_log(mllog(tmp_path, '{"key": "run_s'))


def test_a_dawnbench_entry_is_read(tmp_path):
    path = tmp_path / "someone_net.tsv"
    path.write_text(
        "epoch\thours\ttop1Accuracy\n0\t0.5\t50.0\n1\t1.0\t80\n5\t1.5\t94\n"
    )
    (tmp_path / "someone_net.json").write_text(
        json.dumps({"model": "Net", "hardware": "1 K80"})
    )

    run = load_log(path)

    assert run.name == "Net on 1 K80"
    assert time_s(run, 0.2, "dawnbench", "top1_error") == pytest.approx(3600)
    assert time_s(run, 0.01, "dawnbench", "top1_error") is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "epoch\thours\tblueScore\n", "must have one of the columns"),
        ("a.tsv", "epoch\thours\ttop1Accuracy\n1\t2\n", "Line 2 of .* numbers"),
        (
            "a.csv",
            "accumulated_submission_time,x\n1,2\n",
            "without .*accumulated_eval_time",
        ),
        ("a.csv", "accumulated_submission_time,x\n", "without rows"),
        (
            "a.csv",
            "accumulated_submission_time,accumulated_eval_time,total_duration,validation/wer\n"
            "1,soon,2,0.5\n",
            "accumulated_eval_time must be a finite number .* Received: 'soon' in line 2",
        ),
        ("a.txt", "hello\n", "Received: "),
        ("a.json", "{}", "Received: "),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)

    with pytest.raises(UsageError, match=message):
        load_log(tmp_path / name)


def test_what_lies_at_a_path(tmp_path):
    LedgerBuilder().begin().write(tmp_path / "group" / "run_10")
    LedgerBuilder().begin().write(tmp_path / "group" / "run_2")

    (tmp_path / "group" / "notes.txt").write_text("nothing")

    assert find_logs(tmp_path / "group" / "run_2") == [tmp_path / "group" / "run_2"]
    assert [path.name for path in find_logs(tmp_path / "group")] == ["run_2", "run_10"]
    with pytest.raises(UsageError, match="has neither"):
        find_logs(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        find_logs(tmp_path / "nowhere")


@pytest.fixture
def run(tmp_path):
    """A run of three epochs in every one of which waiting and evaluation count."""
    ledger = LedgerBuilder().begin(init_s=2.5)
    for epoch, cer in enumerate([0.4, 0.3, 0.2], start=1):
        ledger.epoch(epoch, cer, wait_s=0.25, forward_s=0.5, decode_s=1.5)

    return load_log(ledger.end().write(tmp_path / "run"))


def test_our_runs_keep_their_times_in_the_others_formats(run, tmp_path):
    mlperf.write(run, tmp_path / "result_0.txt")
    algoperf.write(run, tmp_path / "study_0.csv")
    dawnbench.write(run, tmp_path / "entry.tsv", author="us")

    for path, name in [
        ("result_0.txt", "mlperf"),
        ("study_0.csv", "algoperf"),
        ("entry.tsv", "dawnbench"),
    ]:
        again = load_log(tmp_path / path)
        for target in (0.8, 0.6, 0.4001, 0.1):
            expected = time_s(run, target, name)

            assert time_s(again, target, name) == (
                expected and pytest.approx(expected, abs=2e-3)
            )

    assert json.loads((tmp_path / "entry.json").read_text())["author"] == "us"

    first = (tmp_path / "result_0.txt").read_text().splitlines()[0]
    assert set(json.loads(first.removeprefix(":::MLLOG "))) == {
        "namespace", "time_ms", "event_type", "key", "value", "metadata",
    }  # fmt: skip


def test_their_tables_are_steps_from_one_on(tmp_path):
    path = tmp_path / "net.tsv"
    path.write_text(
        "epoch\thours\ttop1Accuracy\twordAccuracy\n0\t0.5\t50.0\t25\n1\t1.0\t80\t75\n"
    )

    run = load_log(path)

    assert step_numbers(run) == [1, 2]
    assert (run.wall_s, run.intervals["train"]) == (3600, 3600)
    assert [point.value for point in run.accuracy_curve("wer")] == [0.75, 0.25]
    assert [point.value for point in run.accuracy_curve("top1_error")] == pytest.approx(
        [0.5, 0.2]
    )


def test_a_run_without_characters_has_none_of_them_right_in_an_entry(tmp_path):
    ledger = LedgerBuilder().begin()
    for epoch, wer in ((1, 0.5), (2, 0.25)):
        ledger.event("epoch_start", epoch_num=epoch).step().event(
            "eval_start", epoch_num=epoch
        )
        ledger.event("tracked_stats", {"wer": wer}, epoch_num=epoch)
        ledger.event("eval_stop", epoch_num=epoch).event("epoch_stop", epoch_num=epoch)

    run = load_log(ledger.end().write(tmp_path / "run"))
    dawnbench.write(run, tmp_path / "entry.tsv")

    rows = [
        line.split("\t") for line in (tmp_path / "entry.tsv").read_text().splitlines()
    ]

    assert [row[2:] for row in rows] == [
        ["wordAccuracy", "characterAccuracy"], ["50.0", "0.0"], ["75.0", "0.0"],
    ]  # fmt: skip


def test_mlperfs_lines_say_where_they_come_from(run, tmp_path):
    mlperf.write(run, tmp_path / "result_0.txt")
    text = (tmp_path / "result_0.txt").read_text()
    lines = [json.loads(line.removeprefix(":::MLLOG ")) for line in text.splitlines()]

    began = next(line for line in lines if line["key"] == "run_start")
    place = [event["key"] for event in run.events].index("run_start") + 1

    assert began["metadata"] == {"file": "events.jsonl", "lineno": place}

    header = {line["key"]: line["value"] for line in lines}
    assert header["gradient_accumulation_steps"] == 1


def test_an_mlperf_log_states_gradient_accumulation_once(tmp_path):
    accumulating = (
        LedgerBuilder().begin().event("gradient_accumulation_steps", 4).epoch(1, 0.5)
    )
    mlperf.write(
        load_log(accumulating.end().write(tmp_path / "acc")), tmp_path / "result_1.txt"
    )

    result = (tmp_path / "result_1.txt").read_text()

    assert result.count('"gradient_accumulation_steps"') == 1
    assert '"gradient_accumulation_steps", "value": 4' in result


def test_an_epoch_of_a_log_has_the_samples_that_it_states(tmp_path):
    lines = ['{"key": "seed", "time_ms": 1, "value": 99}']
    lines += ['{"key": "train_samples", "time_ms": 1, "value": 640}']
    for epoch in (1, 2):
        about = f'"metadata": {{"epoch_num": {epoch}}}'
        lines += [f'{{"key": "epoch_start", "time_ms": {10_000 * epoch}, {about}}}']
        lines += [
            f'{{"key": "epoch_stop", "time_ms": {10_000 * epoch + 8000}, {about}}}'
        ]

    run = load_log(mllog(tmp_path, *lines))

    assert run.throughput(0).utterances_per_s == 80
    assert run.throughput(0).steps == 2


@pytest.mark.parametrize(
    "about",
    [
        '"metadata": [1]',
        '"metadata": {"epoch_num": []}',
        '"metadata": {"epoch_num": "1"}',
    ],
)
def test_events_of_another_shape_are_named(tmp_path, about):
    good = '{"key": "run_start", "time_ms": 1}'

    with pytest.raises(UsageError, match="Line 3 "):
        load_log(
            mllog(
                tmp_path, good, f'{{"key": "run_start", "time_ms": 1, {about}}}', good
            )
        )


def test_an_evaluations_seconds_are_added_up(run, tmp_path):
    algoperf.write(run, tmp_path / "study.csv")
    rows = [
        line.split(",") for line in (tmp_path / "study.csv").read_text().splitlines()
    ]

    assert [float(row[1]) for row in rows[1:]] == pytest.approx([2.0, 4.0, 6.0])

    again = load_log(tmp_path / "study.csv")

    assert again.intervals["eval_forward"] == pytest.approx(6.0)
    assert not again.cut


def test_an_evaluation_without_intervals_took_no_time(tmp_path):
    bare = LedgerBuilder().begin()
    bare.event("epoch_start", epoch_num=1).step(epoch=1)
    bare.event("tracked_stats", {"wer": 0.5}, epoch_num=1).event(
        "epoch_stop", epoch_num=1
    )
    bare.event("eval_stop", epoch_num=1)

    algoperf.write(load_log(bare.end().write(tmp_path / "bare")), tmp_path / "bare.csv")

    assert (tmp_path / "bare.csv").read_text().splitlines()[1].split(",")[1] == "0.0"


@pytest.mark.parametrize(
    ("column", "full", "metric"),
    [
        ("top1Accuracy", 100, "top1_error"), ("top5Accuracy", 100, "top5_error"),
        ("f1Score", 1, "f1_error"), ("wordAccuracy", 100, "wer"), ("characterAccuracy", 100, "cer"),
    ],
)  # fmt: skip
def test_an_accuracy_is_a_fraction_of_full_marks(tmp_path, column, full, metric):
    path = tmp_path / "net.tsv"
    path.write_text(f"epoch\thours\t{column}\n1\t1.0\t{0.75 * full}\n")

    (point,) = load_log(path).accuracy_curve(metric)

    assert point.value == pytest.approx(0.25)


def test_a_whole_log_is_not_cut(tmp_path):
    assert not load_log(mllog(tmp_path, '{"key": "run_start", "time_ms": 1}')).cut


def test_a_log_is_called_as_asked_or_like_its_file(run, tmp_path):
    for reader, file in ((mlperf, "result_0.txt"), (algoperf, "study_0.csv")):
        reader.write(run, tmp_path / file)

        assert load_log(tmp_path / file).name == file.split(".")[0]
        assert load_log(tmp_path / file, "mine").name == "mine"

    (tmp_path / "bare.tsv").write_text("epoch\thours\ttop1Accuracy\n1\t1.0\t50\n")

    assert load_log(tmp_path / "bare.tsv").name == "bare"
    assert load_log(tmp_path / "bare.tsv", "mine").name == "mine"
