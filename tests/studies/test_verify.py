"""``tfasr verify``: honest studies pass, and each kind of forgery fails at the check meant for it.

The submission and the studies in tests/data_records were made by real trainings, see
`tests.studies.races`. A forger is skilled: all hashes are made anew after a change.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import tarfile
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from tests.studies.forging import Forger, events_of, written
from tests.studies.races import KINDS, RECORDS, unpack
from tests.tones import SHARDS
from tfasr import cli
from tfasr.data.manifest import file_sha256
from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE
from tfasr.ledger.declared import STARTS_FILE, check_study
from tfasr.ledger.events import chain_of
from tfasr.studies.form import check_starts
from tfasr.studies.quiet import check_quiet, first_tries
from tfasr.studies.records import (
    CHALLENGER,
    REIGNING,
    RULES,
    STUDY_FILE,
    SUBMISSION_FILE,
    load_track,
    records_table,
    statements,
    statements_hash,
    tracks,
    verify_submission,
)
from tfasr.studies.verify import verify_study
from tfasr.tta.comparison import decide
from tfasr.tta.policies import Bracket
from tfasr.verifying.run import Check

SUBMISSION = RECORDS / "faster"
with tarfile.open(SUBMISSION / STUDY_FILE) as packed:
    SEEDS = json.load(packed.extractfile("sealed_plan.json"))["study"]["seeds"]
FIRST, SECOND = SEEDS[:2]
BASE = (REIGNING, FIRST)
FAST = (CHALLENGER, FIRST)
NEXT = (CHALLENGER, SECOND)


def resealed(folder: Path) -> None:
    path = folder / SUBMISSION_FILE
    stated = json.loads(path.read_text())
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != path)
    stated["files"] = {p.relative_to(folder).as_posix(): file_sha256(p) for p in files}
    path.write_text(json.dumps(stated))


def stating(folder: Path, **changes) -> None:
    path = folder / SUBMISSION_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class Forged:
    """A copy of the submission, unpacked for a change and packed again."""

    def __init__(self, folder: Path):
        self.folder = Path(shutil.copytree(SUBMISSION, folder / "submission"))
        self.study = unpack(SUBMISSION / STUDY_FILE, folder / "study")
        self.forger = Forger(self.study)

    def packed(self) -> None:
        self.forger.write()
        options = {"preset": 0, "format": tarfile.USTAR_FORMAT}
        with tarfile.open(self.folder / STUDY_FILE, "w:xz", **options) as archive:
            for path in self.study.rglob("*"):
                if path.is_file():
                    archive.add(path, path.relative_to(self.study).as_posix())

        stating(self.folder, study=chain_of(self.study / STARTS_FILE)[-1])
        resealed(self.folder)


def failure(checks: Generator[Check, None, None], name: str) -> str:
    """Returns why a check fails; later ones are not made."""
    with contextlib.closing(checks):
        for check in checks:
            if check.name == name:
                assert check.passed is False, check
                return check.text

    raise AssertionError(f"{name} was not checked")


def score(forged):
    forged.forger.facts(FAST, "tracked_stats")[-1]["value"]["cer"] -= 0.01


def reference(forged):
    path = next(iter(sorted((forged.forger.folders[FAST] / "hypotheses").iterdir())))
    path.write_text(
        path.read_text().replace('"audio/validation-00"', '"audio/validation-99"')
    )


def hypotheses_gone(forged):
    for folder in forged.forger.folders.values():
        shutil.rmtree(folder / "hypotheses", ignore_errors=True)


def faster_clock(forged):
    for event in forged.forger.ledgers[FAST]:
        event["metadata"]["mono_s"] *= 0.8


def longer_step(forged):
    forged.forger.facts(FAST, "train_step")[3]["value"]["train_s"] += 0.5


def all_clocks_of_another_speed(forged):
    # By more than the seconds for which a wall clock may be set while a run trains.
    events = forged.forger.ledgers[FAST]
    zero = events[0]["metadata"]["mono_s"]
    for event in events:
        about = event["metadata"]
        about["mono_s"] = zero + (about["mono_s"] - zero) * 4
        if event["key"] == "train_step":
            for part in ("input_wait_s", "compile_s", "train_s"):
                event["value"][part] *= 4


def clock_back(forged):
    forged.forger.ledgers[FAST][20]["metadata"]["mono_s"] -= 100


def other_code(forged):
    forged.forger.facts(FAST, "session_start")[0]["value"]["declared"]["code"] = (
        "0" * 64
    )


def hidden_plugin(forged):
    forged.forger.facts(FAST, "session_start")[0]["value"]["declared"]["plugins"] = [
        "0" * 64
    ]


def environment(forged):
    path = forged.forger.folders[FAST] / "run.json"
    path.write_text(path.read_text().replace('"cores": ', '"cores": 1'))


def environment_with_hash(forged):
    forged.forger.file(
        FAST, "run.json", lambda text: text.replace('"cores": ', '"cores": 1')
    )


def dropped_seed(forged):
    shutil.rmtree(forged.forger.folders.pop(NEXT))


def dropped_from_the_list_too(forged):
    dropped_seed(forged)
    kept = [e for e in forged.forger.list if Forger.run_of(e) != NEXT]
    forged.forger.list[:] = kept


def repeated_seed(forged):
    forged.forger.ledgers[NEXT] = forged.forger.ledgers[FAST]


def reused_seed_with_another_name(forged):
    repeated_seed(forged)
    copied = json.loads(json.dumps(forged.forger.ledgers[FAST]))
    forged.forger.ledgers[NEXT] = copied
    for event in forged.forger.facts(NEXT, "seed"):
        event["value"] = SECOND


def other_seeds(forged):
    forged.forger.sealed["study"]["seeds"] = list(range(2, 14))


def no_training_shards(forged):
    for event in forged.forger.facts(FAST, "shards"):
        del event["value"]["train"]


def resumed_from_nowhere(forged):
    forged.forger.facts(FAST, "session_start")[0]["value"]["resumed_from_step"] = 1


def swapped_shards(forged):
    for event in forged.forger.facts(FAST, "shards"):
        event["value"]["train"] = "0" * 64


def removed_step(forged):
    forged.forger.ledgers[FAST].remove(forged.forger.facts(FAST, "train_step")[3])


def doubled_step(forged):
    events = forged.forger.ledgers[FAST]
    place = events.index(forged.forger.facts(FAST, "train_step")[3])
    events.insert(place, events[place])


def reordered_steps(forged):
    events = forged.forger.ledgers[FAST]
    one, other = (events.index(e) for e in forged.forger.facts(FAST, "train_step")[3:5])
    events[one], events[other] = events[other], events[one]


def small_epoch(forged):
    forged.forger.facts(FAST, "train_step")[0]["value"]["utterances"] = 1


def removed_evaluation(forged):
    for key in ("eval_accuracy", "tracked_stats"):
        forged.forger.ledgers[BASE].remove(forged.forger.facts(BASE, key)[0])


def removed_score(forged):
    forged.forger.ledgers[BASE].remove(forged.forger.facts(BASE, "tracked_stats")[0])


def other_alphabet(forged):
    forged.forger.facts(FAST, "comparability")[0]["value"]["alphabet"] = ["ab", "_"]


def other_decoder(forged):
    forged.forger.facts(FAST, "comparability")[0]["value"]["decoder"]["name"] = "beam"


def other_rule_of_comparison(forged):
    forged.forger.facts(FAST, "comparability")[0]["value"]["max_duration_s"] = 1.0


def other_settings(forged):
    change = (f'"seed": {FIRST}', '"seed": 7')
    forged.forger.file(FAST, "experiment.json", lambda text: text.replace(*change))


def other_model(forged):
    # A parameter that gin doesn't know, so that no class seems to be the model's.
    model = '"model": {"more": 1, '
    forged.forger.file(
        FAST, "experiment.json", lambda text: re.sub(r'"model": {\s*', model, text)
    )


def other_statements(forged):
    forged.forger.file(FAST, "config.gin", lambda text: text.replace("0.004", "0.005"))


def undeclared(forged):
    del forged.forger.facts(FAST, "session_start")[0]["value"]["declared"]


def before_the_plan(forged):
    for event in forged.forger.ledgers[FAST]:
        event["time_ms"] -= 86_400_000


def hidden_attempt(forged):
    plan = forged.forger.list[0]["value"]["sha256"]
    run = {"experiment": CHALLENGER, "seed": FIRST}
    mark = {"chain": "0123456789abcdef", "bytes": 5000}
    for key, more in (
        ("start", {"plan": plan, "ledger": None}),
        ("end", {"ledger": mark, "exit_code": 1}),
    ):
        again = {**forged.forger.list[1], "key": key, "value": {**run, **more}}
        forged.forger.list.insert(1, again)

    forged.forger.list[1:3] = forged.forger.list[2:0:-1]


def start_taken_out_of_the_list(forged):
    starts = [e for e in forged.forger.list if e["key"] == "start"]
    forged.forger.list.remove(starts[1])


def extra_run(forged):
    shutil.copytree(
        forged.forger.folders[FAST], forged.study / "runs" / CHALLENGER / "seed_99"
    )


def crippled_baseline(forged):
    for run in forged.forger.sealed["runs"]:
        if run["experiment"] == REIGNING:
            run["statements"] = [
                s.replace("0.0004", "0.00001") for s in run["statements"]
            ]

    for run in forged.forger.folders:
        if run[0] == REIGNING:
            forged.forger.file(
                run, "config.gin", lambda text: text.replace("0.0004", "0.00001")
            )


def throttled_baseline(forged):
    forged.forger.sealed["experiments"][REIGNING]["environment"] = [
        "TF_NUM_INTRAOP_THREADS=1"
    ]
    for run in forged.forger.sealed["runs"]:
        if run["experiment"] == REIGNING:
            run["statements"].append("TF_NUM_INTRAOP_THREADS=1")


def easier_level(forged):
    forged.forger.sealed["study"]["level"] = 0.05


def easier_target(forged):
    for run in forged.forger.sealed["runs"]:
        run["statements"] = [s.replace("0.55)", "0.95)") for s in run["statements"]]
    for run in forged.forger.folders:
        forged.forger.file(
            run, "config.gin", lambda text: text.replace("0.55)", "0.95)")
        )


def not_in_turns(forged):
    starts = [e for e in forged.forger.list if e["key"] == "start"]
    first, second = (forged.forger.list.index(start) for start in starts[:2])
    listed = forged.forger.list
    forged.forger.list[:] = [listed[0], *listed[second:second * 2 - first], *listed[first:second],
                             *listed[second * 2 - first:]]  # fmt: skip


def other_plan_file(forged):
    forged.forger.sealed["until"] = ""


def _scored(forged, run, key="tracked_stats"):
    return [event["value"] for event in forged.forger.facts(run, key)]


def score_that_is_no_number(forged):
    _scored(forged, FAST)[-1]["cer"] = math.nan


def score_without_the_target(forged):
    for values in _scored(forged, FAST):
        del values["cer"]


def accuracy_alone(forged):
    forged.forger.facts(FAST, "eval_accuracy")[-1]["value"] = 0.01


def counts_gone(forged):
    for values in _scored(forged, FAST):
        del values["words"]


def unknown_metric(forged):
    _scored(forged, FAST)[-1]["mine"] = 0.01


def second_decoder_that_was_never_used(forged):
    for event in forged.forger.facts(FAST, "seed"):
        place = forged.forger.ledgers[FAST].index(event)
        more = {**event, "key": "second_decoder", "value": "word_beam"}
        forged.forger.ledgers[FAST].insert(place, more)

    for values in _scored(forged, FAST):
        values["word_beam_cer"] = values["word_beam_wer"] = 0.01


def scores_twice(forged):
    events = forged.forger.ledgers[FAST]
    last = forged.forger.facts(FAST, "tracked_stats")[-1]
    place = events.index(last)
    better = json.loads(json.dumps(last))
    better["value"]["cer"] /= 2
    events.insert(place, better)


def last_epoch_empty(forged):
    steps = forged.forger.facts(FAST, "train_step")
    last = max(step["metadata"]["epoch_num"] for step in steps)
    for step in steps:
        if step["metadata"]["epoch_num"] == last:
            step["value"]["utterances"] = 0


def last_epoch_short(forged):
    forged.forger.facts(FAST, "train_step")[-1]["value"]["utterances"] = 1


def fractions_of_utterances(forged):
    forged.forger.facts(FAST, "train_step")[-1]["value"]["utterances"] -= 0.5


def evaluations_without_end(forged):
    for event in forged.forger.facts(FAST, "target_rule"):
        event["value"]["evaluations_per_epoch"] = 10**9


def a_tenth_of_the_time(forged):
    # Of the longest run: others may be shorter than what two processes' clocks show.
    events = max(
        forged.forger.ledgers.values(),
        key=lambda run: run[-1]["metadata"]["mono_s"] - run[0]["metadata"]["mono_s"],
    )
    mono = events[0]["metadata"]["mono_s"]
    wall = events[0]["time_ms"]
    for event in events:
        event["metadata"]["mono_s"] = mono + (event["metadata"]["mono_s"] - mono) / 10
        event["time_ms"] = round(wall + (event["time_ms"] - wall) / 10)
        if event["key"] == "train_step":
            for part in ("input_wait_s", "compile_s", "train_s"):
                event["value"][part] /= 10


def long_ago(forged):
    for event in forged.forger.ledgers[FAST]:
        event["time_ms"] += 10 * 365 * 86_400_000


def written_in_the_future(forged):
    later = 30 * 365 * 86_400_000
    for events in [forged.forger.list, *forged.forger.ledgers.values()]:
        for event in events:
            event["time_ms"] += later


def older_process(forged):
    forged.forger.facts(FAST, "session_start")[0]["metadata"]["process_age_s"] = 500.0


def other_threads(forged):
    for run in forged.forger.folders:
        if run[0] == REIGNING:
            for event in forged.forger.facts(run, "conditions"):
                event["value"]["environment"]["TF_NUM_INTRAOP_THREADS"] = "1"


def threads_unknown(forged):
    for event in forged.forger.facts(FAST, "conditions"):
        event["key"] = "something"


def hashes_of_no_files(forged):
    for event in forged.forger.facts(FAST, "files"):
        event["value"] = {}


def folder_outside(forged):
    forged.forger.sealed["runs"][0]["folder"] = "../outside"


def plan_that_is_none(forged):
    forged.forger.sealed["study"]["experiments"] = 5


def imports_in_a_run(forged):
    forged.forger.file(FAST, "config.gin", lambda text: "import antigravity\n" + text)


def includes_in_a_run(forged):
    forged.forger.file(
        FAST, "config.gin", lambda text: "include '/etc/passwd'\n" + text
    )


def link_in_a_run(forged):
    path = forged.forger.folders[FAST] / "notes.txt"
    path.symlink_to("/etc/passwd")


def pipe_in_a_run(forged):
    os.mkfifo(forged.forger.folders[FAST] / "pipe")


def smaller_budget(forged):
    for run in forged.forger.sealed["runs"]:
        if run["experiment"] == REIGNING:
            lines = run["statements"]
            run["statements"] = [s.replace("epochs = 120", "epochs = 2") for s in lines]


def shared_recordings(forged):
    forged.forger.facts(BASE, "shared_with_training")[0]["value"]["utterances"] = 3


FORGERIES = {
    score: (f"{CHALLENGER} seed {FIRST}, scores", "other values of cer"),
    reference: (f"{CHALLENGER} seed {FIRST}, scores", "other references"),
    hypotheses_gone: (f"{CHALLENGER} seed {FIRST}, scores", "the data to check it is missing"),
    faster_clock: (f"{CHALLENGER} seed {FIRST}, clocks", "books .* but only|by the wall clock"),
    longer_step: (f"{CHALLENGER} seed {FIRST}, clocks", "step 4 books .* but only"),
    all_clocks_of_another_speed: (f"{CHALLENGER} seed {FIRST}, clocks", "by the wall clock"),
    clock_back: (f"{CHALLENGER} seed {FIRST}, clocks", "backwards"),
    other_code: (f"{CHALLENGER} seed {FIRST}, as declared", "code was changed"),
    other_model: (f"{CHALLENGER} seed {FIRST}, settings", "parameters of a model"),
    hidden_plugin: (f"{CHALLENGER} seed {FIRST}, as declared", "plug-ins"),
    environment: (f"{CHALLENGER} seed {FIRST}, settings", "run.json was changed"),
    environment_with_hash: ("machine", "cores"),
    dropped_seed: ("plan", f"{CHALLENGER} seed {SECOND} is missing"),
    dropped_from_the_list_too: ("verdict", "not decided"),
    repeated_seed: ("plan", f"{CHALLENGER} seed {SECOND} was (started|trained with seed {FIRST})"),
    reused_seed_with_another_name: ("plan", f"{CHALLENGER} seed {SECOND} was started by another"),
    other_seeds: ("seeds", "don't follow from the recipes' hash"),
    no_training_shards: (f"{CHALLENGER} seed {FIRST}, as declared", "other data.*train"),
    resumed_from_nowhere: (f"{CHALLENGER} seed {FIRST}, events", "resumed from step 1"),
    swapped_shards: (f"{CHALLENGER} seed {FIRST}, as declared", "other data"),
    removed_step: (f"{CHALLENGER} seed {FIRST}, counts", "missing, doubled or reordered"),
    doubled_step: (f"{CHALLENGER} seed {FIRST}, chain", "is step 4 and follows step 4"),
    reordered_steps: (f"{CHALLENGER} seed {FIRST}, chain", "follows step"),
    small_epoch: (f"{CHALLENGER} seed {FIRST}, counts", "have the split's 24 utterances"),
    removed_evaluation: (f"{REIGNING} seed {FIRST}, counts", "evaluation of epoch 1 is missing"),
    removed_score: (f"{REIGNING} seed {FIRST}, scores", "exactly one result"),
    other_alphabet: (f"{CHALLENGER} seed {FIRST}, settings", "alphabet"),
    other_decoder: (f"{CHALLENGER} seed {FIRST}, settings", "decoder"),
    other_rule_of_comparison: (f"{CHALLENGER} seed {FIRST}, settings", "does not match its hash"),
    other_settings: (f"{CHALLENGER} seed {FIRST}, settings", f"the seed {FIRST}, .* 7"),
    other_statements: (f"{CHALLENGER} seed {FIRST}, as declared", "other statements"),
    undeclared: ("plan", "did not start: they may be older"),
    before_the_plan: (f"{CHALLENGER} seed {FIRST}, as declared", "before the plan"),
    hidden_attempt: ("plan", f"{CHALLENGER} seed {FIRST} was begun twice"),
    start_taken_out_of_the_list: ("plan", "without a start|removed from the list"),
    extra_run: ("plan", "seed_99 is extra"),
    crippled_baseline: ("against", "other statements than its own"),
    throttled_baseline: ("rules", f"{REIGNING} had its own environment"),
    easier_level: ("rules", "level or clock"),
    easier_target: ("rules", "track's bindings"),
    not_in_turns: ("turns", "take turns"),
    shared_recordings: ("leaks", "3 recordings are in both"),
    other_plan_file: ("rules", "until decided"),
    score_that_is_no_number: (f"{CHALLENGER} seed {FIRST}, scores", "other values of cer"),
    score_without_the_target: (f"{CHALLENGER} seed {FIRST}, scores", "lacks cer"),
    accuracy_alone: (f"{CHALLENGER} seed {FIRST}, scores", "other values of wer"),
    counts_gone: (f"{CHALLENGER} seed {FIRST}, scores", "lacks words"),
    unknown_metric: (f"{CHALLENGER} seed {FIRST}, scores", "can't be counted.*mine"),
    second_decoder_that_was_never_used: (f"{CHALLENGER} seed {FIRST}, scores", "word_beam"),
    scores_twice: (f"{CHALLENGER} seed {FIRST}, scores", "exactly one result"),
    last_epoch_empty: (f"{CHALLENGER} seed {FIRST}, counts", "has 0 utterances"),
    last_epoch_short: (f"{CHALLENGER} seed {FIRST}, counts", "24 utterances"),
    fractions_of_utterances: (f"{CHALLENGER} seed {FIRST}, counts", "utterances"),
    evaluations_without_end: (f"{CHALLENGER} seed {FIRST}, counts", "evaluation .* is missing"),
    a_tenth_of_the_time: ("times", "by its own clock than|ended .* before its process did"),
    long_ago: ("times", "after its start in the study's list, by the wall clock"),
    written_in_the_future: (f"{CHALLENGER} seed {FIRST}, clocks", "in the future"),
    older_process: ("times", "begins -.* after its start"),
    other_threads: ("machine", "environment differ"),
    threads_unknown: ("machine", "under which conditions"),
    hashes_of_no_files: (f"{CHALLENGER} seed {FIRST}, settings", "no hash of"),
    folder_outside: ("plan", "a folder outside"),
    plan_that_is_none: ("plan", "other experiments than its study lists"),
    imports_in_a_run: (f"{CHALLENGER} seed {FIRST}, as declared", "only bindings.*antigravity"),
    includes_in_a_run: (f"{CHALLENGER} seed {FIRST}, as declared", "only bindings.*passwd"),
    link_in_a_run: ("files", "is a link"),
    pipe_in_a_run: ("files", "is a pipe"),
    smaller_budget: ("rules", "track's bindings"),
}  # fmt: skip


@pytest.mark.parametrize("change", FORGERIES, ids=lambda change: change.__name__)
def test_a_forged_race_fails_for_its_own_reason(tmp_path, change):
    name, reason = FORGERIES[change]
    forged = Forged(tmp_path)
    change(forged)
    if name in RULES or change is hypotheses_gone:
        forged.packed()
        checks = verify_submission(forged.folder, None, RECORDS)
    else:
        forged.forger.write()
        checks = verify_study(forged.study)

    assert re.search(reason, failure(checks, name))


def load_in_the_others_turns(forged):
    """The hypervisor takes a processor from all of reigning's runs, and none from
    challenger's.
    """
    for run, folder in forged.forger.folders.items():
        path = folder / "host.csv"
        heading, *rows = [line.split(",") for line in path.read_text().splitlines()]
        for name in ("stolen_s", "waited_s", "throttled_s"):
            for number, row in enumerate(rows):
                stolen = name == "stolen_s" and run[0] != CHALLENGER
                row[heading.index(name)] = f"{number if stolen else 0}.0"

        path.write_text("".join(",".join(row) + "\n" for row in [heading, *rows]))


def no_samples(forged):
    (forged.forger.folders[BASE] / "host.csv").unlink()


def work_before_the_clock(forged):
    for run in forged.forger.folders:
        if run[0] == CHALLENGER:
            first = forged.forger.facts(run, "session_start")[0]
            first["metadata"]["process_age_s"] += 500.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            load_in_the_others_turns,
            "more of reigning's processors than of challenger's",
        ),
        (no_samples, "no samples of load"),
        (
            work_before_the_clock,
            "before its clock starts, challenger takes .* s longer",
        ),
    ],
)
def test_a_race_in_seconds_compares_what_the_machine_gave(
    tmp_path, monkeypatch, change, reason
):
    def in_seconds(name, records):
        return dataclasses.replace(load_track(name, records), kind="seconds")

    monkeypatch.setattr("tfasr.studies.records.load_track", in_seconds)
    forged = Forged(tmp_path)
    forged.packed()
    honest = [
        c for c in verify_submission(forged.folder, None, RECORDS) if c.name == "load"
    ]
    assert [check.passed for check in honest] == [True], honest
    change(forged)
    forged.packed()
    assert re.search(
        reason, failure(verify_submission(forged.folder, None, RECORDS), "load")
    )


def changed_file(folder):
    (folder / "code.diff").write_text("nothing was changed\n")


def extra_file(folder):
    (folder / "plugins").mkdir()
    (folder / "plugins" / "model.py").write_text("import tfasr\n")


def other_plugins(folder):
    extra_file(folder)
    resealed(folder)


def other_track(folder):
    path = folder / "track.gin"
    path.write_text(path.read_text().replace("0.55", "0.95"))
    resealed(folder)


def other_verdict(folder):
    stating(folder, verdict="undecided")


def other_ratio(folder):
    stating(folder, ratio=0.01)


def other_card(folder):
    path = folder / "card.json"
    path.write_text(re.sub(r'"mlperf": [\d.]+', '"mlperf": 0.001', path.read_text()))
    resealed(folder)


def other_archive(folder):
    (folder / STUDY_FILE).write_bytes(b"no archive")
    resealed(folder)


def no_record(folder):
    stating(folder, against="0123456789abcdef")


def unknown_track(folder):
    stating(folder, track="mine")


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        (changed_file, "files", "code.diff"),
        (extra_file, "files", "missing or extra.*model.py"),
        (other_plugins, "leaks", "not those that the plan names"),
        (other_track, "track", "differs from the current track tones"),
        (other_verdict, "verdict", "the runs differ in verdict"),
        (other_ratio, "verdict", "the runs differ in ratio"),
        (other_card, "verdict", "card.json has other numbers"),
        (other_archive, "study", "can't be unpacked"),
        (no_record, "against", "the baseline reigned"),
        (unknown_track, "track", "no track 'mine'"),
    ],
)
def test_a_changed_submission_fails_for_its_own_reason(tmp_path, change, name, reason):
    folder = Path(shutil.copytree(SUBMISSION, tmp_path / "submission"))
    change(folder)
    assert re.search(reason, failure(verify_submission(folder, None, RECORDS), name))


def test_what_the_validation_set_told_the_code_is_looked_for(tmp_path, monkeypatch):
    def checked(**diff):
        folder = Path(
            shutil.copytree(SUBMISSION, tmp_path / f"{len(list(tmp_path.iterdir()))}")
        )
        (folder / "code.diff").write_text(diff["text"])
        resealed(folder)
        return failure(verify_submission(folder, None, RECORDS), "leaks")

    rows = unpack(SUBMISSION / STUDY_FILE, tmp_path / "study").rglob(
        "hypotheses/*.jsonl"
    )
    references = [
        json.loads(line)["reference"] for line in next(rows).read_text().splitlines()
    ]
    # Of tones, a transcript is one word.
    monkeypatch.setattr("tfasr.studies.records._TELLTALE_WORDS", 1)
    assert references[0] in checked(text=f"+    '{references[0]}',\n")
    monkeypatch.setattr("tfasr.studies.records._TELLTALE_WORDS", 3)
    monkeypatch.setattr("tfasr.studies.records._VOCABULARY", 3)
    assert "5 of 5 validation words" in checked(text=f"+ {references!r}")


def test_what_is_all_computed_anew_is_seen_by_a_published_hash_alone(tmp_path, capsys):
    forged = Forged(tmp_path)
    before = chain_of(forged.study / STARTS_FILE)[-1]
    for event in forged.forger.ledgers[FAST]:
        event["metadata"]["mono_s"] += 1.0
    forged.forger.write()
    words = ["tfasr", "verify", str(forged.study)]
    assert cli.run(cli.parse(words)) == 0  # docs/records.md: this can't be stopped
    assert cli.run(cli.parse([*words, "--published", before])) == 1
    assert "no line of starts.jsonl" in capsys.readouterr().out


def test_the_submission_is_accepted_with_its_data_and_by_the_command(tmp_path, capsys):
    moved = shutil.copytree(SUBMISSION, tmp_path / "elsewhere" / "mine")
    words = ["tfasr", "verify", str(moved), "--shard_dir", str(SHARDS)]
    assert cli.run(cli.parse([*words, "--records", str(RECORDS)])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("FAILED")] == []
    assert any(re.match(r"ok +data: the splits share", line) for line in lines)
    assert any(
        re.match(r"ok +verdict: record: .*challenger is faster", line) for line in lines
    )
    other = ["tfasr", "verify", str(tmp_path)]
    assert cli.run(cli.parse(other)) == 2


# Honest studies: each way in which one was trained, in each state in which one may be
# found.


def as_it_is(folder):
    return folder


def renamed(folder):
    return folder.rename(folder.with_name("another name, with spaces"))


def with_notes(folder):
    (folder / "notes.txt").write_text("the second run was slow, somebody compiled\n")
    (folder / "logs").mkdir(exist_ok=True)
    return folder


def copied_later(folder):
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return folder


def with_a_torn_tail(folder):
    with (folder / STARTS_FILE).open("ab") as file:
        file.write(b'{"namespace":"","time_ms":17')
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "state",
    [as_it_is, renamed, with_notes, copied_later, with_a_torn_tail],
    ids=lambda s: s.__name__,
)
def test_an_honest_study_is_accepted(tmp_path, kind, state):
    archive = RECORDS / "studies" / f"{kind}.tar.xz"
    folder = state(unpack(archive, tmp_path / "study"))
    failures = [
        check.line for check in verify_study(folder, SHARDS) if check.passed is False
    ]
    assert failures == []
    study = check_study(folder)
    assert bool(study.amended) == (kind == "extended")
    assert len(study.waiting) == (2 if kind == "unfinished" else 0)
    one_seed = kind in ("interrupted_twice", "overridden", "disturbed")
    assert study.declared == (2 if one_seed else 4)
    assert ("two", 1) in study.repeated or kind != "disturbed"
    assert study.found + len(study.waiting) == study.declared


def test_a_report_says_what_was_declared(tmp_path, capsys):
    folder = unpack(RECORDS / "studies" / "plain.tar.xz", tmp_path / "study")
    assert cli.run(cli.parse(["tfasr", "report", str(folder)])) == 0
    assert "declared 4, found 4." in capsys.readouterr().out
    shutil.rmtree(folder / "runs" / "two" / "seed_2")
    assert cli.run(cli.parse(["tfasr", "report", str(folder)])) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "declared 4, found 3; NOT AS DECLARED: two seed 2 is missing" in shown


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: lines[1:], "must begin with a sealed plan|damaged"),
        (lambda lines: [*lines[:2], *lines[3:]], "Line 3 .*damaged"),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], "Line 4 .*damaged"),
        (
            lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
            "Line 3 .*damaged",
        ),
        (
            lambda lines: [
                lines[0].replace(b'"changes":[]', b'"changes":[1]'),
                *lines[1:],
            ],
            "Line 1 ",
        ),
    ],
)
def test_a_changed_list_of_starts_is_named(tmp_path, change, reason):
    folder = unpack(RECORDS / "studies" / "plain.tar.xz", tmp_path / "study")
    path = folder / STARTS_FILE
    path.write_bytes(b"\n".join(change(path.read_bytes().splitlines())) + b"\n")
    assert re.search(reason, failure(verify_study(folder), "plan"))


def a_run_that_is_found_slow(folder):
    shutil.rmtree(folder / "disturbed")


def a_run_that_was_repeated_without_a_reason(folder):
    less_taken(folder / "disturbed" / "two-seed_1" / "host.csv")


def a_first_try_that_was_exchanged(folder):
    first = folder / "disturbed" / "two-seed_1" / EVENTS_FILE
    shutil.copy(folder / "runs" / "two" / EVENTS_FILE, first)


def a_third_first_try(folder):
    shutil.copytree(
        folder / "disturbed" / "two-seed_1", folder / "disturbed" / "two-seed_2"
    )


def less_taken(path):
    path.write_text(path.read_text().replace("\n17", "\n18", 1))


@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        (
            a_run_that_is_found_slow,
            "plan",
            "first try of two seed 1 is missing from disturbed",
        ),
        (a_first_try_that_was_exchanged, "plan", "the first try of two seed 1 "),
        (a_third_first_try, "plan", "disturbed/two-seed_2 is extra"),
        (
            a_run_that_was_repeated_without_a_reason,
            "quiet machine",
            "other samples of load",
        ),
    ],
)
def test_which_runs_are_trained_again_is_checked(tmp_path, change, name, reason):
    folder = unpack(RECORDS / "studies" / "disturbed.tar.xz", tmp_path / "study")
    change(folder)
    assert re.search(reason, failure(verify_study(folder), name))


def busy_from_the_start(path):
    heading, *rows = [line.split(",") for line in path.read_text().splitlines()]
    for name in ("waited_s", "busy_s"):
        for number, row in enumerate(rows):
            row[heading.index(name)] = str(9.0 * number)

    path.write_text("".join(",".join(row) + "\n" for row in [heading, *rows]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (busy_from_the_start, "four seed 1 lost .*, so it had to be trained again"),
        (Path.unlink, "four seed 1 has no samples of load in host.csv"),
    ],
)
def test_a_disturbed_run_may_not_count_at_once(tmp_path, change, reason):
    folder = unpack(RECORDS / "studies" / "plain.tar.xz", tmp_path / "study")
    forger = Forger(folder)
    forger.sealed["study"]["most_taken"] = 0.9999
    forger.write()
    # Only this check is made: the plan in study.json and the report still have 1.
    assert check_quiet(check_study(folder), folder)
    change(folder / "runs" / "four" / "seed_1" / "host.csv")
    with pytest.raises(UsageError, match=reason):
        forger.sealed["study"]["most_taken"] = 0.5
        forger.write()
        check_quiet(check_study(folder), folder)


def test_a_report_shows_the_first_try_of_a_disturbed_run(tmp_path):
    folder = unpack(RECORDS / "studies" / "disturbed.tar.xz", tmp_path / "study")
    again = "trained again because the machine disturbed them: "
    # How many of the two were disturbed enough depends on the machine that made the
    # archive.
    assert re.search(again + "[12]", check_study(folder).sentence)

    sentence = first_tries(folder)[0]

    assert (
        " seed 1 was trained again, as declared, because the machine took" in sentence
    )
    assert sentence.count(" min") == 2


def test_a_ledger_that_was_rewritten_alone_is_not_the_one_that_ended(tmp_path):
    folder = unpack(RECORDS / "studies" / "plain.tar.xz", tmp_path / "study")
    path = folder / "runs" / "two" / "seed_1" / EVENTS_FILE
    events = events_of(path)
    events[-1]["metadata"]["mono_s"] += 0.001
    path.write_bytes(written(events))
    assert (
        "two seed 1 was begun twice, or its ledger was changed"
        in check_study(folder).sentence
    )


# A recipe against itself: how often would it be a record?


def test_equal_recipes_are_hardly_ever_a_record():
    rng = np.random.default_rng(1)
    records = 0
    for _ in range(200):
        groups = []
        for _ in range(2):
            crossed = 100 * np.exp(0.1 * rng.standard_normal(12))
            grid = 4 * np.floor(crossed / 4)  # evaluated every 4 s
            groups.append(
                [Bracket(low, low + 4, None, low + 8) for low in map(float, grid)]
            )

        records += decide(*groups, level=0.01).sooner == "second"

    assert records <= 2


def test_the_table_of_records_is_current():
    records = Path(__file__).parents[2] / "records"
    assert (records / "README.md").read_text() == records_table(records)
    assert {"an4_cer_15", "mini_librispeech_wer_65", "synthetic_cer_10"} == tracks(
        records
    ).keys()


def test_every_track_can_be_raced_with_its_baseline_of_today():
    for name in tracks(Path("no_records")):
        track = load_track(name, Path("no_records"))
        assert statements_hash(statements(track.baseline)) == track.baseline_hash, name


def test_every_record_still_passes_all_checks():
    records = Path(__file__).parents[2] / "records"
    folders = [path.parent for path in records.glob("*/*/submission.json")]
    if not folders:
        pytest.skip("no record has been raced since its rules changed")
    for folder in folders:
        checks = list(verify_submission(folder, None, records))
        assert [check.line for check in checks if check.passed is False] == []


def test_a_table_has_every_submission_and_the_last_record_reigns(tmp_path, capsys):
    records = tmp_path / "records"
    shutil.copytree(RECORDS / "tones", records / "tones")
    for number, verdict in enumerate(("refuted", "record", "undecided"), 1):
        folder = Path(
            shutil.copytree(SUBMISSION, records / "tones" / f"{number:03}-try")
        )
        stating(folder, verdict=verdict, study=f"{number:032}")

    assert (
        cli.run(cli.parse(["tfasr", "record", "--table", "--records", str(records)]))
        == 0
    )
    table = (records / "README.md").read_text()
    verdicts = [row.split(" | ")[1] for row in table.splitlines() if "-try]" in row]
    assert verdicts == ["refuted", "record", "undecided"]
    # Whoever raced the baseline did not race the record.
    for check in verify_submission(SUBMISSION, None, records):
        if check.name == "against":
            assert check.passed is False
            assert (
                "00000000000000000000000000000002 reigned, but the study raced the baseline"
                in check.text
            )


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_made_now_is_accepted(tmp_path, kind):
    KINDS[kind](tmp_path / "study")
    failures = [c.line for c in verify_study(tmp_path / "study") if c.passed is False]
    assert failures == []


# The list of starts of a study on several hosts.

PLAN = ("plan", {"file": "sealed_plan.json", "sha256": "0", "changes": []})
A = "10.0.0.7"
B = "10.0.0.9"


def described(host):
    return (
        "host",
        {"host": host, "description": {"processor": "P"}, "clock_ahead_s": 0.0},
    )


def start(experiment, seed, host, **more):
    clock = {"time_ms": 1, "mono_s": 1.0}
    value = {"experiment": experiment, "seed": seed, "plan": "0", "ledger": None}
    return ("start", {**value, "host": host, "clock": clock, **more})


def end(experiment, seed, host):
    clock = {"time_ms": 2, "mono_s": 2.0}
    value = {"experiment": experiment, "seed": seed, "exit_code": 0, "ledger": None}
    return ("end", {**value, "host": host, "clock": clock})


def lost(experiment, seed, host):
    return ("lost", {"experiment": experiment, "seed": seed, "host": host})


def abandoned(experiment, seed, host):
    place = f"abandoned/{experiment}-seed_{seed}-1"
    value = {
        "experiment": experiment,
        "seed": seed,
        "host": host,
        "folder": place,
        "ledger": None,
    }
    return ("abandoned", {**value, "reason": "lost"})


def checked(*lines):
    """Checks a list of starts, in which "again" begins another session."""
    events = []
    session = 0
    for number, line in enumerate([PLAN, *lines]):
        if line == "again":
            session += 1
            continue

        about = {"session": session, "mono_s": 100.0 + number}
        event = {"namespace": "", "time_ms": 1000 * (100 + number), "metadata": about}
        events.append(
            {**event, "event_type": "POINT_IN_TIME", "key": line[0], "value": line[1]}
        )

    check_starts(events, STARTS_FILE)


BOTH = (described(A), described(B))


def test_hosts_train_at_the_same_time_and_one_run_each():
    at_once = (
        start("two", 1, A),
        start("two", 2, B),
        end("two", 2, B),
        end("two", 1, A),
    )
    checked(*BOTH, *at_once)
    # A host that was lost comes back, in another session too.
    checked(
        *BOTH,
        start("two", 1, A),
        lost("two", 1, A),
        start("two", 1, A),
        end("two", 1, A),
    )
    checked(described(A), start("two", 1, A), "again", described(A), start("two", 1, A))
    # All runs of a seed begin again on another host.
    seed = (
        start("two", 1, A),
        end("two", 1, A),
        start("four", 1, A),
        lost("four", 1, A),
    )
    both_left = (abandoned("two", 1, A), abandoned("four", 1, A))
    checked(
        *BOTH,
        *seed,
        *both_left,
        start("four", 1, B),
        end("four", 1, B),
        start("two", 1, B),
    )


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            (described(A), start("two", 1, A), start("two", 2, A)),
            "before the end of the run",
        ),
        ((start("two", 1, A),), "undescribed"),
        (
            (described(A), start("two", 1, A), "again", start("two", 1, A)),
            "undescribed",
        ),
        (
            (*BOTH, start("two", 1, A), end("two", 1, A), start("four", 1, B)),
            rf"four seed 1 is trained on {B}, its seed on {A}",
        ),
        (
            (*BOTH, start("two", 1, A), lost("two", 1, A), start("two", 1, B)),
            "its seed on",
        ),
        ((*BOTH, start("two", 1, A), end("two", 1, B)), "without a start"),
        ((*BOTH, start("two", 1, A), abandoned("two", 1, A)), "while it runs"),
        (
            (*BOTH, start("two", 1, A), lost("two", 1, A), abandoned("two", 1, B)),
            rf"abandoned on {B}, but was on '{A}'",
        ),
        (
            (
                *BOTH,
                *(
                    start("two", 1, A),
                    end("two", 1, A),
                    start("four", 1, A),
                    lost("four", 1, A),
                ),
                *(abandoned("four", 1, A), start("four", 1, B)),
            ),
            r"begins again, but \['two'\] of its seed does not",
        ),
        (
            (
                *BOTH,
                *(start("two", 1, A), lost("two", 1, A), abandoned("two", 1, A)),
                start("two", 1, A),
            ),
            "begins again on the same",
        ),
        (
            (described(A), start("two", 1, A, clock={"time_ms": 1})),
            "missing or extra fields",
        ),
        ((described(""),), "without a name"),
    ],
)
def test_an_impossible_list_of_hosts_is_named(lines, reason):
    with pytest.raises(UsageError, match=reason):
        checked(*lines)


def an_hour_ahead(forger, *, ledgers, clocks):
    """Sets the wall clock of the hosts ahead, in ledgers and in the list."""
    if ledgers:
        for events in forger.ledgers.values():
            for event in events:
                event["time_ms"] += 3_600_000

    if clocks:
        for event in forger.list:
            if "clock" in event["value"]:
                event["value"]["clock"]["time_ms"] += 3_600_000

    forger.write()


def test_a_hosts_clock_may_be_an_hour_off_but_a_ledger_must_have_it(tmp_path):
    archive = RECORDS / "studies" / "on_hosts.tar.xz"
    folder = unpack(archive, tmp_path / "ahead")
    an_hour_ahead(Forger(folder), ledgers=True, clocks=True)
    assert [check.line for check in verify_study(folder) if check.passed is False] == []
    for number, options in enumerate(
        ({"ledgers": True, "clocks": False}, {"ledgers": False, "clocks": True})
    ):
        folder = unpack(archive, tmp_path / str(number))
        an_hour_ahead(Forger(folder), **options)
        assert "after its start in the study's list, by the wall clock" in failure(
            verify_study(folder), "times"
        )


def test_a_training_that_was_faster_by_its_hosts_clock_alone_is_named(tmp_path):
    folder = unpack(RECORDS / "studies" / "on_hosts.tar.xz", tmp_path / "study")
    forger = Forger(folder)
    (end, *_) = [event for event in forger.list if event["key"] == "end"]
    end["value"]["clock"]["mono_s"] += 60
    end["value"]["clock"]["time_ms"] += 60_000
    forger.write()
    assert "s on its host, and" in failure(verify_study(folder), "times")


def test_unlike_hosts_of_a_study_by_groups_are_named(tmp_path):
    folder = unpack(RECORDS / "studies" / "on_hosts.tar.xz", tmp_path / "study")
    forger = Forger(folder)
    first, *_ = [event for event in forger.list if event["key"] == "host"]
    first["value"]["description"]["processor"] = "Another"
    forger.write()
    assert all(check.passed is not False for check in verify_study(folder))
    forger.sealed["study"]["test"] = "groups"
    assert "is not like" in failure_of_groups(forger, folder)


def failure_of_groups(forger, folder):
    from tfasr.studies.plan import allowed_levels, plan_of

    forger.sealed["looks"] = allowed_levels(plan_of(forger.sealed).config)
    forger.write()
    return failure(verify_study(folder), "hosts")


def test_the_runs_of_a_lost_host_are_kept_and_named(tmp_path):
    folder = unpack(RECORDS / "studies" / "lost_host.tar.xz", tmp_path / "study")
    sentence = check_study(folder).sentence
    assert re.search(
        r"found 4; begun again: .*two seed \d, as 127\.0\.0\.2 was lost", sentence
    )
    kept = next((folder / "abandoned").glob("two-seed_*")) / EVENTS_FILE
    content = kept.read_bytes()
    kept.write_bytes(content[: content.rindex(b"\n", 0, -1) + 1])
    assert "NOT AS DECLARED" in check_study(folder).sentence
    shutil.rmtree(kept.parent)
    assert "was abandoned, and abandoned/two-seed" in check_study(folder).sentence
