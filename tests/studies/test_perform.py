"""The steps of a study: what is done is passed over, what fails loses nothing else."""

import contextlib
import dataclasses
import logging
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tfasr
from tests.reports.conftest import ledger_of
from tests.studies import races
from tests.tta.ledger_builder import LedgerBuilder
from tfasr import cli
from tfasr.errors import UsageError
from tfasr.kit.gin import presets_folder
from tfasr.ledger.declared import STARTS_FILE, Seen, Starts
from tfasr.ledger.events import ledger_mark, read_events
from tfasr.reports.groups import group_results
from tfasr.studies.blocks import perform
from tfasr.studies.perform import (
    alternating,
    check_until,
    decision,
    decision_text,
    load_until_plan,
    perform_until_decided,
    study,
)
from tfasr.studies.plan import (
    Step,
    begin,
    finished,
    grow,
    grown_from,
    load_plan,
    sealed_content,
    study_steps,
)
from tfasr.studies.report import _chapter
from tfasr.training.from_gin import load_config


@pytest.fixture
def step(tmp_path):
    """Makes a step that reports on a run, done once its log holds the table."""
    ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "run")

    def make(name, run="run", needs=None):
        log = tmp_path / "logs" / f"{name}.log"
        return Step(
            "train",
            name,
            lambda: ["report", tmp_path / run],
            lambda: log.exists() and "CER 10 %" in log.read_text(),
            log,
            needs,
        )

    return make


def test_each_step_is_a_process_and_its_words_go_to_its_log(step, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="tfasr"):
        steps = [
            step("first"),
            step("broken", run="nowhere"),
            step("held", needs=tmp_path / "no"),
        ]
        assert perform(steps) == ["broken", "held"]

    said = caplog.messages
    assert said[0] == "1/3 first"
    assert said[1].startswith("1/3 first: done, ")
    assert "left of the study" in said[2]
    assert "failed. It ended with exit code 2" in said[3]
    assert "does not exist" in said[3]
    assert said[-1] == f"3/3 held: failed. {tmp_path / 'no'} is not finished"
    # Again, with the run that was missing: only what is not done is begun.
    caplog.clear()
    ledger_of([0.1] * 3).write(tmp_path / "nowhere")
    with caplog.at_level(logging.INFO, logger="tfasr"):
        assert perform([step("first"), step("broken", run="nowhere")]) == []
    assert [line for line in caplog.messages if "first" in line] == []


def test_each_training_is_noted_before_and_after(step, tmp_path):
    broken = dataclasses.replace(step("broken", run="nowhere"), alike="slow", seed=7)
    broken = dataclasses.replace(broken, run_dir=tmp_path / "runs" / "slow")
    starts = Starts(tmp_path, lambda: {"runs": []})
    with contextlib.closing(starts):
        assert perform([broken], starts=starts) == ["broken"]
    events = read_events(tmp_path / STARTS_FILE)
    assert [event["key"] for event in events] == ["plan", "start", "end"]
    assert events[2]["value"] == {
        "experiment": "slow", "seed": 7, "exit_code": 2, "ledger": None,
    }  # fmt: skip


def test_which_runs_are_finished(tmp_path):
    ledger_of([0.1]).write(tmp_path / "whole")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "events.jsonl").write_text("{}\n")
    cut = ledger_of([0.1])
    del cut.events[-1]
    cut.write(tmp_path / "cut")
    names = ("whole", "empty", "broken", "cut", "missing")
    assert [finished(tmp_path / name) for name in names] == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_a_wrong_study_leaves_no_folder(tmp_path):
    with pytest.raises(UsageError, match="--gin_file must be a file or a preset"):
        study("nowhere.gin", run_dir=tmp_path / "study")
    with pytest.raises(UsageError, match="--shard_dir"):
        study("study/paper.gin", run_dir=tmp_path / "study")
    assert not (tmp_path / "study").exists()


WAITS = """
import sys, time
from tfasr.kit.process import end_with
end_with(int(sys.argv[1]))
print("waits", flush=True)
time.sleep(600)
"""
STARTS = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], str(os.getpid())])
"""


def test_a_steps_process_ends_when_the_study_is_killed():
    command = [sys.executable, "-c", STARTS, WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waits\n"
        process.kill()
        # The pipe is closed once the last process that holds it has ended.
        assert process.stdout.read() == ""


# What a study's gin file asks for, and what is refused before anything is trained.

STUDIES = sorted(path.name for path in (presets_folder() / "study").glob("*.gin"))
SMALL = "study/paper_small.gin"
TWO = """\
StudyConfig.experiments = ('slow', 'fast')
StudyConfig.seeds = (1, 2)
ExperimentConfig.gin_files = ('demo.gin',)
slow/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 8',)
fast/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 64',)
fast/ExperimentConfig.seeds = (1, 2, 3)
"""


def written(folder, text=TWO):
    path = folder / "mine.gin"
    path.write_text(text)
    return str(path)


def test_a_terminated_study_lets_its_training_save_first(tmp_path):
    # As in a SLURM job's script: a shell lets what it starts behind it ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = races.start(tmp_path / "study", "(1,)")
    finally:
        signal.signal(signal.SIGINT, before)

    ledger = tmp_path / "study/runs/two/events.jsonl"
    races.wait_for(
        process, lambda: ledger.is_file() and b'"train_step"' in ledger.read_bytes()
    )
    process.terminate()
    output, _ = process.communicate(timeout=races.PATIENCE_S)

    assert "interrupted" in output
    assert process.returncode == 1
    last = read_events(ledger.parent)[-1]
    assert last["key"] == "run_stop"
    assert last["metadata"]["status"] == "interrupted"


def test_runs_take_turns_and_carry_their_seeds(tmp_path):
    plan = load_plan(written(tmp_path))
    assert [str(run.folder) for run in plan.runs] == [
        "runs/slow/seed_1", "runs/fast/seed_1", "runs/slow/seed_2", "runs/fast/seed_2",
        "runs/fast/seed_3",
    ]  # fmt: skip
    assert plan.runs[3].bindings == (
        "PipelineConfig.global_batch_size = 64", "TrainingConfig.seed = 2",
    )  # fmt: skip
    assert plan.runs[0].gin_files[0].endswith("gin/demo.gin")
    assert plan.runs[4].name == "fast-seed_3"
    # One seed is one folder.
    one = load_plan(
        written(tmp_path),
        ["StudyConfig.seeds = (7,)", "fast/ExperimentConfig.seeds = ()"],
    )
    assert [str(run.folder) for run in one.runs] == ["runs/slow", "runs/fast"]


def test_a_preset_beside_the_studys_file_is_found_there(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "own.gin").write_text("TrainingConfig.epochs = 2\n")
    path = written(tmp_path / "there", TWO.replace("demo.gin", "own.gin"))
    monkeypatch.chdir(tmp_path)
    assert load_plan(path).runs[0].gin_files == (str(tmp_path / "there" / "own.gin"),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("('slow', 'fast')", "('slow', 'fats')"), r"mine\.gin:1.*'fats'.*Described: slow, fast"),
        (("('slow', 'fast')", "('slow', 'slow')"), r"mine\.gin:1.*different.*\('slow', 'slow'\)"),
        (("('slow', 'fast')", "('slow',)"), r"mine\.gin:5.*nothing uses it"),
        (("('slow', 'fast')", "()"), r"mine\.gin:1.*at least one"),
        (("demo.gin", "nowhere.gin"), r"nowhere\.gin"),
        (("(1, 2, 3)", "(3, 3)"), r"mine\.gin:6.*different"),
        (("(1, 2, 3)", "3"), r"mine\.gin:6.*seeds must be"),
        (("fast/ExperimentConfig.seeds", "fast/ExperimentConfig.sed"), r"mine\.gin:6.*sed"),
        (("slow/ExperimentConfig.bindings", "slow/ExperimentConfig.label = 'fast'\n#"),
         "label of its own.*'fast'"),
        (("seeds = (1, 2)\n", "corpus = 'mine'\n"), r"mine\.gin:2.*corpus must be"),
        (("seeds = (1, 2)\n", "beam_widths_of = 'mine'\n"), r"mine\.gin:2.*slow, fast.*'mine'"),
    ],
)  # fmt: skip
def test_bad_studies_are_refused_by_file_and_line(tmp_path, change, message):
    assert change[0] in TWO
    with pytest.raises(UsageError, match=message):
        load_plan(written(tmp_path, TWO.replace(*change)))


@pytest.mark.parametrize(
    ("file", "resume"),
    [
        ("report/report.html", False),
        ("runs/slow/notes.txt", True),
        ("study.json", True),
    ],
)
def test_a_folder_that_is_no_study_is_refused(tmp_path, file, resume):
    folder = tmp_path / "mine"
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text('{"subject": "mine"}')
    with pytest.raises(UsageError, match=rf"holds {file.partition('/')[0]} "):
        begin(folder, load_plan(written(tmp_path)), None, resume=resume)
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / file]
    assert (folder / file).read_text() == '{"subject": "mine"}'


@pytest.mark.parametrize(
    "text",
    [
        '{"rows": 3}',
        '{"rows": [[1]]}',
        '{"rows": [{"split": "test"}]}',
        '{"f1": 2}',
        "[]",
    ],
)
def test_a_foreign_file_of_scores_is_named_and_kept(tmp_path, text):
    scored = written(tmp_path, f"{TWO}StudyConfig.final_splits = ('test',)\n")
    plan = load_plan(scored)
    steps = [
        s for s in study_steps(plan, tmp_path, Path("shards")) if s.kind == "score"
    ]
    assert not steps[0].done()
    path = tmp_path / "scores" / plan.runs[0].name / "scores.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UsageError, match=str(path)):
        steps[0].done()
    assert path.read_text() == text


def test_a_folder_keeps_the_study_it_was_begun_with(tmp_path):
    path = written(tmp_path)
    folder = tmp_path / "study"
    folder.mkdir()
    begin(folder, load_plan(path), None, resume=False)
    with pytest.raises(UsageError, match="must not hold a study yet.*--resume"):
        begin(folder, load_plan(path), None, resume=False)
    # What only the report shows may change, and so may comments.
    written(tmp_path, f"# again\n{TWO}StudyConfig.title = 'Another title'\n")
    begin(folder, load_plan(path), None, resume=True)
    for change, message in (
        ("StudyConfig.seeds = (1, 3)", "runs/slow/seed_2: not planned any more"),
        (
            "slow/ExperimentConfig.bindings = ()",
            "runs/slow/seed_1: a statement is gone",
        ),
        ("StudyConfig.corpus = 'synthetic'", "corpus: '' then, 'synthetic' now"),
    ):
        with pytest.raises(UsageError, match=message):
            begin(folder, load_plan(path, [change]), None, resume=True)

    with pytest.raises(UsageError, match=r"shard_dir: None then, .*/shards' now"):
        begin(folder, load_plan(path), tmp_path / "shards", resume=True)


def test_a_study_takes_more_seeds_and_its_single_runs_make_room(tmp_path):
    path = written(tmp_path)
    folder = tmp_path / "study"
    folder.mkdir()
    single = ["StudyConfig.seeds = (1,)", "fast/ExperimentConfig.seeds = ()"]
    begin(folder, load_plan(path, single), None, resume=False)
    ledger_of([0.1]).write(folder / "runs" / "slow")
    for name in ("logs/slow.log", "logs/slow-scores.log", "scores/slow/scores.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)

    plan = load_plan(path)
    more = begin(folder, plan, None, resume=True)
    assert [run.name for run in more] == ["slow-seed_2", "fast-seed_2", "fast-seed_3"]
    grow(folder, plan, more)
    assert finished(folder / "runs" / "slow" / "seed_1")
    assert sorted(str(p.relative_to(folder)) for p in folder.glob("[ls]*/*")) == [
        "logs/slow-seed_1-scores.log", "logs/slow-seed_1.log", "scores/slow-seed_1",
    ]  # fmt: skip
    # From now on it is a study of that many, and takes more again.
    assert begin(folder, plan, None, resume=True) == []
    even_more = load_plan(path, ["StudyConfig.seeds = (1, 2, 4)"])
    grow(folder, even_more, begin(folder, even_more, None, resume=True))
    assert "4 runs were added to the 2" in grown_from(folder)
    with pytest.raises(UsageError, match="runs/slow/seed_4: not planned any more"):
        begin(folder, plan, None, resume=True)


def test_a_killed_move_goes_on(tmp_path):
    path = written(tmp_path)
    folder = tmp_path / "study"
    folder.mkdir()
    begin(folder, load_plan(path, ["StudyConfig.seeds = (1,)"]), None, resume=False)
    ledger_of([0.1]).write(folder / "runs" / "slow.moving")
    plan = load_plan(path)
    grow(folder, plan, begin(folder, plan, None, resume=True))
    assert [p.name for p in (folder / "runs").iterdir()] == ["slow"]
    assert finished(folder / "runs" / "slow" / "seed_1")


def test_what_holds_for_all_experiments_may_be_all_there_is(tmp_path):
    both = (
        "ExperimentConfig.gin_files = ('demo.gin',)\nExperimentConfig.seeds = (1, 2)\n"
    )
    one = load_plan(written(tmp_path, f"StudyConfig.experiments = ('only',)\n{both}"))
    assert [str(run.folder) for run in one.runs] == [
        "runs/only/seed_1",
        "runs/only/seed_2",
    ]
    more = (
        "large/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 64',)\n"
    )
    text = f"StudyConfig.experiments = ('small', 'large')\n{both}{more}"
    assert list(load_plan(written(tmp_path, text)).experiments) == ["small", "large"]
    with pytest.raises(UsageError, match="'one', for which nothing is bound"):
        load_plan(
            written(tmp_path, f"StudyConfig.experiments = ('one', 'two')\n{both}")
        )


def test_recordings_must_come_prepared(tmp_path):
    with pytest.raises(UsageError, match="--shard_dir.*Received: none"):
        study_steps(load_plan(written(tmp_path)), tmp_path, None)


def test_speech_of_its_own_is_prepared_as_the_recipes_read_it(tmp_path, monkeypatch):
    """demo.gin sums up powers, and the default magnitudes: its trainings refused the
    shards.
    """
    monkeypatch.setattr(
        "tfasr.corpora.synthetic.make_synthetic_corpus", lambda folder: None
    )
    text = f"{TWO}StudyConfig.corpus = 'synthetic'\n"
    plan = load_plan(written(tmp_path, text))
    corpus, train = study_steps(plan, tmp_path, None)[:2]
    prepared = cli.parse(["tfasr", *map(str, corpus.words())])
    trained = cli.parse(["tfasr", *map(str, train.words())])
    features = load_config(prepared.gin_file, prepared.gin_binding).experiment.features
    assert features.spectrum == "power"
    assert (
        features
        == load_config(trained.gin_file, trained.gin_binding).experiment.features
    )


@pytest.mark.parametrize("name", STUDIES)
def test_presets_are_made_of_presets_and_not_of_studies(name):
    for run in load_plan(f"study/{name}").runs:
        assert not [file for file in run.gin_files if Path(file).parent.name == "study"]


def test_the_papers_studies_are_alike():
    small = load_plan(SMALL)
    paper = load_plan("study/paper.gin")
    assert list(small.experiments) == list(paper.experiments)
    assert small.parts() == paper.parts()
    # Of its few words the small one also has widths at which they differ.
    assert set(paper.config.beam_widths) < set(small.config.beam_widths)
    assert min(small.config.beam_widths) == 1
    tables = [one.published_table for one in paper.experiments.values()]
    assert tables == ["Table 4"] * 3 + ["Table 6"] * 3


def test_the_small_studys_equal_runs_differ_by_their_systems_alone():
    runs = {run.experiment: run for run in load_plan(SMALL).runs}
    for part, batches in (("", [8, 20, 25]), ("equal_", [8, 8, 8])):
        systems = [runs[f"{part}sys{price}"] for price in (1, 2, 10)]
        configs = [load_config(run.gin_files, run.bindings) for run in systems]
        experiments = [config.experiment for config in configs]
        kernels = [experiment.model.lstm_kernel for experiment in experiments]
        threads = ["TF_NUM_INTRAOP_THREADS=1" in run.environment for run in systems]
        assert list(zip(kernels, threads, strict=True)) == [
            ("generic", True), ("generic", False), ("auto", False),
        ]  # fmt: skip
        assert [e.pipeline.global_batch_size for e in experiments] == batches
        assert len({config.hardware.name for config in configs}) == 3
        assert {e.training.precision for e in experiments} == {"float32"}
        if part:
            alike = [
                dataclasses.replace(e.model, lstm_kernel="auto") for e in experiments
            ]
            assert alike[1:] == alike[:-1]
            assert len({(e.training.seed, e.pipeline) for e in experiments}) == 1


def test_a_trainings_process_has_its_experiments_environment(tmp_path, monkeypatch):
    line = "slow/ExperimentConfig.environment = ('TF_NUM_INTRAOP_THREADS=1', 'OF=a=b')"
    plan = load_plan(written(tmp_path), [line])
    steps = study_steps(plan, tmp_path, tmp_path / "shards")
    started = []

    def start(*words, environment, **_):
        started.append(environment)
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr("tfasr.studies.agent.start_module", start)
    perform(steps[:2])
    slow, fast = started
    assert (slow["TF_NUM_INTRAOP_THREADS"], slow["OF"]) == ("1", "a=b")
    assert "TF_NUM_INTRAOP_THREADS" not in fast
    # A study that was begun with other threads is another study.
    (tmp_path / "study").mkdir()
    begin(tmp_path / "study", plan, None, resume=False)
    with pytest.raises(UsageError, match="TF_NUM_INTRAOP_THREADS"):
        more = line.replace("=1", "=2")
        begin(
            tmp_path / "study", load_plan(written(tmp_path), [more]), None, resume=True
        )

    with pytest.raises(UsageError, match="environment"):
        load_plan(
            written(tmp_path), ["slow/ExperimentConfig.environment = ('THREADS',)"]
        )


# ``tfasr study --until decided``: only as many seeds as the comparison needs.

TWO_EXPERIMENTS = """\
StudyConfig.experiments = ('slow', 'fast')
StudyConfig.final_splits = ('test',)
ExperimentConfig.gin_files = ('demo.gin',)
slow/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 8',)
fast/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 64',)
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(TWO_EXPERIMENTS)
    return load_until_plan(str(path), [])


def performed(
    plan, folder, pace_of, *, fails=None, targets=(("cer", 0.2), ("cer", 0.1))
):
    """Does a study's steps by writing ledgers; returns their names and what failed."""
    names = []

    def perform(steps):
        failed = []
        for step in steps:
            if step.done():
                continue
            names.append(step.name)
            if step.name == fails:
                failed.append(step.name)
            elif step.kind == "train":
                seed = int(step.name.rsplit("_", 1)[1])
                ledger = LedgerBuilder().begin(targets=targets).event("seed", seed)
                for epoch in range(1, 8):
                    pace = pace_of(step.alike) * (1 + 0.01 * (seed % 5))
                    ledger.epoch(epoch, 0.9 * 0.6**epoch, steps=1, train_s=pace)

                ledger.end().write(step.run_dir)

        return failed

    steps = alternating(plan, folder, study_steps(plan, folder, folder / "shards"))
    return names, perform_until_decided(plan, folder, steps, perform)


def test_a_clear_gap_takes_five_seeds_and_scores_those_alone(plan, tmp_path):
    check_until("decided", plan)
    names, failed = performed(plan, tmp_path, {"slow": 2.0, "fast": 1.0}.get)
    assert failed == []
    trained = [name for name in names if name.startswith("train")]
    # Neither experiment is always first.
    wanted = []
    for seed in range(1, 6):
        pair = [f"train slow-seed_{seed}", f"train fast-seed_{seed}"]
        wanted += pair if seed % 2 else reversed(pair)

    assert trained == wanted
    assert [name for name in names if name.startswith("score")] == [
        f"score {experiment}-seed_{seed}"
        for seed in range(1, 6)
        for experiment in ("slow", "fast")
    ]
    found = decision(plan, tmp_path)
    assert (found.sooner, found.runs) == ("second", 5)
    assert decision_text(plan, found).startswith(
        "slow against fast: fast is faster (p = "
    )
    assert (tmp_path / "decision.txt").read_text() == decision_text(plan, found) + "\n"
    # Resumed, it is decided already.
    names, _ = performed(plan, tmp_path, {"slow": 2.0, "fast": 1.0}.get)
    assert [name for name in names if name.startswith("train")] == []


def test_no_gap_takes_all_seeds_and_stays_undecided(plan, tmp_path):
    names, _ = performed(plan, tmp_path, {"slow": 1.0, "fast": 1.0}.get)
    assert len([name for name in names if name.startswith("train")]) == 24
    assert "undecided after all looks" in decision_text(plan, decision(plan, tmp_path))


def of_pairs(tmp_path, test):
    path = tmp_path / "mine.gin"
    path.write_text(f"{TWO_EXPERIMENTS}StudyConfig.test = {test!r}\n")
    return load_until_plan(str(path), [])


def test_the_verdict_stands_on_the_declared_test(tmp_path):
    plan = of_pairs(tmp_path, "pairs")
    check_until("decided", plan)
    names, _ = performed(plan, tmp_path / "pairs", {"slow": 2.0, "fast": 1.0}.get)
    assert len([name for name in names if name.startswith("train")]) == 16
    found = decision(plan, tmp_path / "pairs")
    assert (found.comparison.test, found.sooner, found.runs) == ("pairs", "second", 8)
    report = _chapter(plan, tmp_path / "pairs", "runs").report
    compared = group_results(report)[0][1].comparison
    assert (compared.test, compared.pairs) == ("pairs", 8)


def sealed_study(plan, folder, spread, seed, apart=1.0):
    """A study by looks, sealed as `study` does it, whose runs differ by a spread of
    their pace.
    """
    folder.mkdir()
    rng = np.random.default_rng(seed)
    trained = {"targets": [["cer", 0.2], ["cer", 0.1]], "target_window": 3}
    declared = dict.fromkeys(plan.experiments, trained)
    starts = Starts(
        folder, lambda: sealed_content(plan, "decided", declared, folder / "shards")
    )

    def perform(steps):
        for step in steps:
            if step.done() or step.kind != "train":
                continue
            run = (step.alike, step.seed)
            starts.start(*run, Seen(ledger_mark(step.run_dir)))
            pace = math.exp(spread * rng.standard_normal())
            pace *= apart if step.alike == "fast" else 1.0
            ledger = (
                LedgerBuilder()
                .begin(targets=trained["targets"])
                .event("seed", step.seed)
            )
            for epoch in range(1, 32):
                ledger.epoch(
                    epoch, 0.9 * 0.92**epoch, steps=1, train_s=pace, decode_s=0.0
                )
            ledger.end().write(step.run_dir)
            starts.end(*run, Seen(ledger_mark(step.run_dir)), 0)

        return []

    steps = alternating(plan, folder, study_steps(plan, folder, folder / "shards"))
    with contextlib.closing(starts):
        perform_until_decided(plan, folder, steps, perform)
    return decision(plan, folder)


@pytest.mark.parametrize("test", ["groups", "pairs"])
def test_the_report_of_a_study_by_looks_says_what_its_decision_says(test, tmp_path):
    found = set()
    for number, apart in enumerate((1.0, 1.0, 1.0, 1.0, 1.15, 0.8)):
        plan = of_looks(tmp_path, test, 0.05)
        folder = tmp_path / str(number)
        decided = sealed_study(plan, folder, 0.1, number, apart)
        found.add(decided.sooner)
        easy, hard = group_results(_chapter(plan, folder, "runs").report)
        assert hard[1].comparison == decided.comparison
        # Nothing else is tested, and what was seen at every look has the interval for
        # it.
        assert easy[1].comparison.p_value is easy[1].comparison.sooner is None
        assert easy[1].comparison.level == decided.level
        for sources in (
            [folder],
            [folder / "runs" / name for name in plan.experiments],
        ):
            shown = tfasr.compare(sources)
            assert (
                shown.result(list(shown.groups)[1], cer=0.1).comparison
                == decided.comparison
            )
            assert decision_text(plan, decided) in " ".join(repr(shown).split())

        # On another clock only the declared decision is a verdict.
        other = tfasr.compare(folder, policy="mlperf")
        assert all(row[1].comparison.sooner is None for row in other.results)

    assert len(found) > 1


def of_looks(tmp_path, test, level):
    path = tmp_path / "mine.gin"
    path.write_text(
        f"{TWO_EXPERIMENTS}StudyConfig.test = {test!r}\nStudyConfig.level = {level}\n"
    )
    return load_until_plan(str(path), [])


def test_a_test_is_declared_before_the_runs(tmp_path):
    plan, other = of_pairs(tmp_path, "pairs"), of_pairs(tmp_path, "groups")
    assert "test" not in other.identity
    for number, (begun, resumed) in enumerate([(plan, other), (other, plan)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        begin(folder, begun, None, resume=False)
        begin(folder, begun, None, resume=True)
        with pytest.raises(
            UsageError, match="test: '(pairs|groups)' then, '(pairs|groups)' now"
        ):
            begin(folder, resumed, None, resume=True)

    path = tmp_path / "mine.gin"
    lines = ["StudyConfig.test = 'pairs'", "slow/ExperimentConfig.seeds = (3, 4)"]
    with pytest.raises(
        UsageError, match="compares runs of equal seeds. slow has the seeds"
    ):
        check_until("decided", load_until_plan(str(path), lines))
    with pytest.raises(UsageError, match="StudyConfig.test must be"):
        load_plan(str(path), ["StudyConfig.test = 'luck'"])


def test_a_run_that_failed_ends_the_looks(plan, tmp_path):
    pace = {"slow": 1.0, "fast": 1.0}.get
    names, failed = performed(plan, tmp_path, pace, fails="train fast-seed_2")
    assert failed == ["train fast-seed_2"]
    assert len([name for name in names if name.startswith("train")]) == 10
    assert decision(plan, tmp_path).runs == 0


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (["StudyConfig.experiments = ('slow', 'fast', 'third')",
          "third/ExperimentConfig.label = 'third'"], "compares two experiments.* has 3"),
        ([], "slow has 1 seeds of its own"),
    ],
)  # fmt: skip
def test_what_is_no_comparison_of_two_is_refused(bindings, message, tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(TWO_EXPERIMENTS)
    with pytest.raises(UsageError, match=message):
        check_until("decided", load_plan(str(path), bindings))


def test_a_dry_run_lists_the_most_that_may_be_trained(plan, tmp_path, capsys):
    words = [
        "study",
        "--gin_file",
        str(tmp_path / "mine.gin"),
        "--shard_dir",
        str(tmp_path),
    ]
    assert cli.run(cli.parse(["tfasr", *words, "--dry_run", "--until", "decided"])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1/48 train slow-seed_1"
    assert lines[22:24] == ["23/48 train fast-seed_12", "24/48 train slow-seed_12"]


def test_a_target_is_met_by_the_rule_that_its_runs_stop_by(plan, tmp_path):
    names = []
    failed = []

    def perform(steps):
        for step in steps:
            if step.kind == "train" and not step.done():
                names.append(step.name)
                pace = {"slow": 3.0, "fast": 1.0}[step.alike] * (1 + 0.01 * len(names))
                ledger = LedgerBuilder().begin(
                    targets=[("cer", 0.1)],
                    comparability={"target_rule": "first evaluation"},
                )
                # Each stops at its first hit, as TrainingConfig.stop_at_targets says.
                for epoch, cer in enumerate((0.6, 0.4, 0.2, 0.05), start=1):
                    ledger.epoch(epoch, cer, steps=1, train_s=pace)
                ledger.end().write(step.run_dir)

        return failed

    steps = study_steps(plan, tmp_path, tmp_path / "shards")
    perform_until_decided(plan, tmp_path, steps, perform)
    found = decision(plan, tmp_path)
    assert (found.sooner, found.runs) == ("second", 5)


@pytest.mark.parametrize(
    ("seeds", "targets", "said"), [(5, 7, True), (6, 7, False), (5, 6, False)]
)
def test_a_dry_run_says_what_so_few_seeds_can_never_decide(
    tmp_path, capsys, seeds, targets, said
):
    path = written(tmp_path, TWO.replace("(1, 2, 3)", f"{tuple(range(seeds))}"))
    pairs = [("cer", round(0.1 + 0.01 * n, 2)) for n in range(targets)]
    words = ["study", "--gin_file", path, "--shard_dir", str(tmp_path), "--dry_run"]
    for line in (
        f"StudyConfig.seeds = {tuple(range(seeds))}",
        "slow/ExperimentConfig.bindings = ('PipelineConfig.global_batch_size = 8',"
        f' "TrainingConfig.targets = {pairs}")',
    ):
        words += ["--gin_binding", line]

    assert cli.run(cli.parse(["tfasr", *words])) == 0
    text = capsys.readouterr().out
    # 2 of 252 exchanges, seven times over.
    assert (f"{seeds} seeds can't decide {targets}" in text) == said
    assert ("0.056" in text) == said


def test_there_is_one_thing_to_wait_for(plan):
    with pytest.raises(UsageError, match="must be 'decided'.*'done'"):
        check_until("done", plan)


def test_runs_without_a_target_decide_nothing(plan, tmp_path):
    with pytest.raises(UsageError, match="needs a target"):
        performed(plan, tmp_path, {"slow": 1.0, "fast": 1.0}.get, targets=None)
