"""Checks what runs and studies state, by recomputing it from their files.

``tfasr verify`` calls `verify_run` and `verify_study`, and prints a line for each
`Check`. First `form` checks that a file has the form that tfasr writes. Then each check
compares two things that a forger would have to change together: a ledger with the
hypotheses, with the study's list of starts (which another process wrote), with the
sealed plan, or with shards.

Nothing of what is checked is executed: gin files are read as evidence, and plug-ins are
only hashed. What no check covers is listed in `UNCHECKED_OF_RUNS` and
`UNCHECKED_OF_STUDIES`, and printed as the last line.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tfasr.data.manifest import check_shards, file_sha256, read_index
from tfasr.errors import RunError, UsageError, printable
from tfasr.kit import files
from tfasr.kit.gin import DROPPED, read_evidence
from tfasr.ledger.declared import (
    STARTS_FILE,
    StudyCheck,
    check_study,
    declarations,
    first_try,
)
from tfasr.ledger.events import LEDGER_FORMAT, chain_of, read_events
from tfasr.scoring.errors import count_errors, read_transcripts
from tfasr.studies.form import (
    CLOCKS_APART,
    check_edges,
    check_ending,
    check_fields,
    check_plan,
    check_starts,
    check_values,
    finite,
    must,
    must_agree,
    part,
)
from tfasr.studies.hosts import unlike
from tfasr.studies.perform import DECISION_FILE, decision, decision_text
from tfasr.studies.plan import PLAN_FILE, Plan, plan_of
from tfasr.studies.quiet import check_quiet
from tfasr.tta.metrics import compute_metrics, computed_metrics
from tfasr.tta.policies import scores_at
from tfasr.tta.run import Run, load_run

# A step's booked time may exceed the time that passed by up to 1 ms: both are rounded.
_ROUNDING_S = 0.001

# Milliseconds by which a run's first event may precede the plan's sealing.
_EARLY_MS = 2000

# A run can't have been written in the future; clocks may be a day off.
_LATE_S = 86400.0

# A ledger and the study's list note the same moment within 5 s.
_NOTED_S = 5.0

# A host's answer may be as late as this (`agent.LEASE_S`).
_ANSWERED_S = 15.0

# Processes take equally long to end, within 5 s plus 5 % of their duration. Whoever
# shortens a run's clock at its end can gain no more than that.
_ENDING = (5.0, 0.05)

# What was compared, for the line of the check; None if there was nothing to compare.
_Checked = str | None

# What no check covers: a reader must know it as well as what was checked.
UNCHECKED_OF_RUNS = (
    "losses",
    "frames and seconds of audio",
    "how a step's time divides into waiting, compiling and training",
    "speakers and scores of hypotheses",
    "samples of load, except in records and where they decide that a run is trained again",
    "samples of energy, GPUs and workers",
    "what run.json says of machine, software and features",
    "the name under which the model is registered",
    "the optimizer's settings beyond its gin statements",
    "facts that no result stands on",
    "times, within what two processes' clocks show (5 s plus 5 %)",
    "threads and processor settings, except in records",
    "files that tfasr doesn't write, and logs",
)
UNCHECKED_OF_STUDIES = (
    "tables, pages and figures of the report, apart from report.json",
    "final scores and beam widths",
    "titles, labels, parts of tables and published results to compare with",
    "the presets and the version of tfasr that the plan names, beyond statements and code",
    "the newest lines of starts.jsonl, if they were cut off",
    "what hosts of a cluster say of their machines",
)


@dataclass(frozen=True)
class Check:
    """One line of a verification."""

    name: str  # the run, if it is about one, and what was checked
    passed: bool | None  # None if there was nothing to check it with
    text: str

    @property
    def line(self) -> str:
        """The outcome in one line. Text from the checked files can't forge another."""
        state = {True: "ok", False: "FAILED", None: "not checked"}[self.passed]
        return printable(f"{state:<12}{self.name}: {self.text}", one_line=True)


def unchecked(checks: Sequence[Check], kinds: Iterable[str]) -> str:
    """Returns the last line of a verification: everything that no check has covered.

    Args:
        checks: all that were made; those without data are listed too.
        kinds: such as `UNCHECKED_OF_RUNS`.
    """
    skipped = [check.name for check in checks if check.passed is None]
    return printable(f"not checked: {'; '.join([*kinds, *skipped])}", one_line=True)


def judged(name: str, check: Callable[[], _Checked]) -> Check:
    """Calls a check, which raises if something is wrong, and returns its outcome.

    Files may have any content, so a check may also fail by whatever Python raises for a
    value of a wrong kind. A defect of the check itself is then reported as a failed
    check, never as a passed one.
    """
    try:
        text = check()
    except (UsageError, RunError, OSError) as error:
        return Check(name, False, str(error))
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:
        return Check(name, False, f"a value is missing or of a wrong kind: {error!r}")
    except RecursionError:
        return Check(name, False, "a file is nested too deeply")

    if text is None:
        return Check(name, None, "no data to check it")

    return Check(name, True, text)


def plain_files(folder: Path) -> _Checked:
    """Checks, before anything is read, that a folder has no links, pipes or devices."""
    return f"{files.check_plain(folder)} files and folders, no links"


def verify_run(
    run_dir: Path, name: str, shard_dir: Path | None = None
) -> Iterator[Check]:
    """Checks a run's ledger, and its other files against the ledger.

    Args:
        run_dir: the run's folder. If it has links or devices, nothing in it is read.
        name: the run's name in the checks' lines.
        shard_dir: prepared splits; None takes the folder that the run names, if it exists.
    """
    plain = judged(f"{name}, files", partial(plain_files, run_dir))
    yield plain
    if plain.passed:
        yield from _verify_run(run_dir, name, shard_dir)


def _verify_run(run_dir: Path, name: str, shard_dir: Path | None) -> Iterator[Check]:
    """Yields a run's checks; all but the first need a ledger whose hashes are right."""
    loaded: list[Run] = []
    yield judged(f"{name}, chain", partial(_chain, run_dir, loaded))
    for run in loaded:
        for check in (_events, _clocks, _counts, _scores, _settings, _checkpoints):
            yield judged(f"{name}, {check.__name__[1:]}", partial(check, run))

        yield judged(f"{name}, shards", partial(_shards, run, shard_dir))


def _chain(run_dir: Path, loaded: list[Run]) -> _Checked:
    """Checks the hash of each line of a ledger, and adds the run to ``loaded``."""
    run = load_run(run_dir)
    must(
        run.ledger_hash is not None,
        "the lines have no hashes: an older tfasr wrote them",
    )
    loaded.append(run)

    return f"{len(run.events)} lines, the last hash is {run.ledger_hash}"


def _clocks(run: Run) -> _Checked:
    """Checks that both clocks of a run rise and agree, and that its intervals add up.

    The wall clock may fall by up to a second, when it is corrected.
    """
    line = run.timeline
    last_ms = 0
    for session in line.sessions:
        events = [run.events[index] for index in session]
        mono = [finite(event["metadata"]["mono_s"]) for event in events]
        times_ms = [last_ms, *(finite(event["time_ms"]) for event in events)]
        must(
            all(a <= b for a, b in pairwise(mono)), "the monotonic clock runs backwards"
        )
        must(
            all(a <= b + 1000 for a, b in pairwise(times_ms)),
            "the wall clock runs backwards",
        )

        must_agree((times_ms[-1] - times_ms[1]) / 1000, mono[-1] - mono[0])

        _check_steps(events)
        last_ms = times_ms[-1]

    must(last_ms / 1000 <= time.time() + _LATE_S, "the run ends in the future")
    sums = abs(sum(run.intervals.values()) - run.wall_s)
    must(sums < 0.001, f"the intervals' sum and the whole time differ by {sums:.3f} s")

    return f"{len(line.sessions)} sessions, {run.wall_s:.1f} s in all"


def _check_steps(events: Sequence[dict[str, Any]]) -> None:
    """Checks that a session's steps book no more seconds than passed since the last."""
    before_s = events[0]["metadata"]["mono_s"]
    for event in events:
        if event["key"] != "train_step":
            continue

        now_s = event["metadata"]["mono_s"]
        step = event["metadata"]["step"]
        parts = ("input_wait_s", "compile_s", "train_s")
        booked = [finite(event["value"][part]) for part in parts]
        must(min(booked) >= 0, f"step {step} books less than 0 s")
        problem = f"step {step} books {sum(booked):.3f} s, but only {now_s - before_s:.3f} s passed"
        must(sum(booked) <= now_s - before_s + _ROUNDING_S, problem)
        before_s = now_s


# What each session of ``tfasr train`` states once, if it has trained a step. Reports
# rest on these facts, so a second, later statement must not replace the first.
_OF_EACH_SESSION = (
    "run_start",
    "conditions",
    "files",
    "shards",
    "comparability",
    "seed",
    "targets",
    "global_batch_size",
    "train_samples",
    "eval_samples",
    "num_replicas",
    "parameters",
    "evaluation_placement",
    "shared_with_training",
    "opt_name",
    "instruction_set",
    "missing_compiled_parts",
    "opt_base_learning_rate",
    "init_start",
    "init_stop",
)


def _events(run: Run) -> _Checked:
    """Checks that sessions follow each other, each with the events that clocks need.

    Runs of `tfasr.Recorder` have no experiment.json; their users decide which events
    there are, so only their form and order are checked.
    """
    line = run.timeline
    check_fields(run.events, files.EVENTS_FILE)
    check_values(run.events, files.EVENTS_FILE)
    trained = (run.path / files.EXPERIMENT_FILE).is_file()

    for number, session in enumerate(line.sessions):
        first = run.events[session.start]
        must(first["key"] == "session_start", f"session {number} has no start")

        value = first["value"]
        same = value["session"] == number and value["ledger_format"] == LEDGER_FORMAT
        must(same, f"session {number} calls itself {value['session']!r:.60}")
        resumed = value["resumed_from_step"]
        alive_ms = value["alive_until_ms"]
        fresh = resumed is None or (number > 0 and type(resumed) is int)
        must(fresh, f"session {number} was resumed from step {resumed!r:.60}")
        must(number > 0 or alive_ms is None, "the first session follows another one")

        others = {line.metadata[index].get("session") for index in session} - {number}
        must(not others, f"events of session {number} have the number {others}")

        keys = Counter(line.keys[index] for index in session)
        if trained and keys["train_step"]:
            missing = [key for key in _OF_EACH_SESSION if keys[key] != 1]
            must(
                not missing,
                f"session {number} does not have exactly one {', '.join(missing)}",
            )

    if trained:
        check_edges(run)

    useful = [i for i in line.of("epoch_start") if line.useful[i]]
    numbers = sorted({line.metadata[i]["epoch_num"] for i in useful})
    must(numbers == list(range(1, len(numbers) + 1)), "epochs begin out of order")

    return f"{len(run.events)} events of {len(line.sessions)} sessions"


def _counts(run: Run) -> _Checked:
    """Checks that no step, utterance or evaluation is missing, doubled or reordered.

    Only useful steps count, not those that a session did after the checkpoint that the
    next session resumed from.
    """
    line = run.timeline
    steps = [i for i in line.of("train_step") if line.useful[i]]
    numbers = [line.metadata[i]["step"] for i in steps]
    must(
        numbers == list(range(1, len(numbers) + 1)),
        "steps are missing, doubled or reordered",
    )

    scored = sorted(_evaluations(run))
    share = line.evaluations_per_epoch
    places = [round(epoch * share) for epoch in scored]
    missing = next((n for n, place in enumerate(places, 1) if n != place), None)
    if missing is not None:
        # 1.5, but 2 instead of 2.0.
        epoch = missing / share if missing % share else missing // share
        raise UsageError(f"the evaluation of epoch {epoch} is missing")

    # In a cluster, the chief books only its share.
    if not isinstance(run.fact("cluster"), dict):
        _check_epochs(run, steps)

    return f"{len(numbers)} steps, {len(scored)} evaluations"


def _check_epochs(run: Run, steps: Sequence[int]) -> None:
    """Checks that epochs have all utterances, and evaluations those before them.

    The last epoch may be incomplete. An evaluation within an epoch comes after the
    batch that completes its share, so it may be off by one batch.
    """
    line = run.timeline
    wanted = run.fact("train_samples")
    must(type(wanted) is int and wanted > 0, f"train_samples is {wanted!r:.60}")

    utterances: Counter[int] = Counter()
    for i in steps:
        number = run.events[i]["value"]["utterances"]
        step = line.metadata[i]["step"]
        must(
            type(number) is int and number > 0,
            f"step {step} has {number!r:.60} utterances",
        )
        utterances[line.metadata[i]["epoch_num"]] += number

    # The last epoch may be incomplete: the run may have met its targets or been ended.
    epochs = sorted(utterances)
    must(epochs == list(range(1, len(epochs) + 1)), "epochs are missing or doubled")
    last = epochs[-1:]
    odd = [n for n in epochs if utterances[n] != wanted and [n] != last]
    must(not odd, f"epoch {odd[:1]} doesn't have the split's {wanted} utterances")
    must(
        all(utterances[n] <= wanted for n in last),
        f"epoch {last} has too many utterances",
    )

    largest = max((run.events[i]["value"]["utterances"] for i in steps), default=0)

    for epoch, begins in _evaluations(run).items():
        before = sum(run.events[i]["value"]["utterances"] for i in steps if i < begins)
        slack = 0 if epoch % 1 == 0 else largest
        problem = (
            f"epoch {epoch:g} doesn't have the split's {wanted} utterances: {before} were trained "
            "before its evaluation"
        )
        must(abs(before - epoch * wanted) <= slack, problem)


def _evaluations(run: Run) -> dict[float, int]:
    """Maps each scored evaluation to the index of the event that it begins with.

    The keys are the epochs that were trained by then.
    """
    line = run.timeline

    first: dict[float, int] = {}
    scored = set()
    for epoch, index in line.evaluated:
        first.setdefault(epoch, index)
        if scores_at(line, index):
            scored.add(epoch)

    return {epoch: index for epoch, index in first.items() if epoch in scored}


def _scores(run: Run) -> _Checked:
    """Counts the errors of each evaluation again and compares them with the ledger.

    There is nothing to compare with if the run kept no hypotheses; if it kept one
    evaluation's, it must have all of them.
    """
    line = run.timeline
    stated = run.comparability or {}

    events: dict[float, list[int]] = {}
    for epoch, index in line.evaluated:
        if scores_at(line, index):
            events.setdefault(epoch, []).append(index)

    written = {epoch: files.hypotheses_file(run.path, epoch) for epoch in events}
    if not any(path.is_file() for path in written.values()):
        return None

    for epoch, indices in events.items():
        keys = [line.keys[index] for index in indices]
        must(
            keys.count("tracked_stats") == 1,
            f"epoch {epoch:g} does not have exactly one result",
        )
        must(len(keys) == len(set(keys)), f"epoch {epoch:g} has several results")
        counts = _counted(run, epoch, written[epoch], stated)

        for index in indices:
            _check_scores(scores_at(line, index), counts, line.keys[index], epoch)

    return f"{len(events)} evaluations counted again"


def _counted(
    run: Run, epoch: float, path: Path, stated: dict[str, Any]
) -> dict[str, float]:
    """Counts an evaluation's errors again, those of a second decoder too.

    Args:
        run: states how many utterances and which references there must be.
        epoch: of the evaluation.
        path: the file with its hypotheses.
        stated: the run's comparability.

    Returns:
        Each metric that can be computed here, by name, as in the ledger.
    """
    rows = read_transcripts(path)
    at = f"epoch {epoch:g}: the hypotheses"
    must(len(rows) == run.fact("eval_samples"), f"{at} are not of all utterances")
    references = references_hash((row.id, row.reference) for row in rows)
    same = references == stated.get("validation_references")
    must(same, f"{at} are of other references than the validation split's")
    texts = [row.reference for row in rows]
    hypotheses = [row.hypothesis for row in rows]

    declared = run.fact("metrics") or {}
    computable = [name for name in computed_metrics() if name in declared]
    counts = {
        **count_errors(texts, hypotheses).to_json(),
        **compute_metrics(texts, hypotheses, computable),
    }
    second = run.fact("second_decoder")
    if second is not None:
        others = count_errors(texts, [row.others[second] for row in rows])
        counts[f"{second}_wer"] = others.wer
        counts[f"{second}_cer"] = others.cer

    return counts


def _check_scores(
    values: dict[str, Any], counts: dict[str, float], key: str, epoch: float
) -> None:
    """Compares an event's metrics with those counted again, within 1e-9.

    The loss can't be counted from hypotheses. Another metric that can't is an error: a
    plug-in computes it, which must be imported to check it.
    """
    at = f"epoch {epoch:g}: the hypotheses"
    if key == "tracked_stats":
        missing = sorted(counts.keys() - values.keys())
        must(not missing, f"epoch {epoch:g} lacks {', '.join(missing)}")
        unknown = sorted(values.keys() - counts.keys() - {"loss"})
        problem = f"epoch {epoch:g} has metrics that can't be counted: {unknown[:3]}"
        must(
            not unknown,
            f"{problem}. If you trust the file that computes them, --import it",
        )

    wrong = []
    for name, value in values.items():
        if name not in counts:
            continue

        number = type(value) in (int, float)
        if not (number and abs(value - counts[name]) <= 1e-9):
            wrong.append(name)

    must(not wrong, f"{at} give other values of {', '.join(wrong)} than the ledger")


def references_hash(rows: Iterable[tuple[str, str]]) -> str:
    """Returns a hash of ids and transcripts; runs record that of their validation set.

    The order of the rows doesn't matter. 16 hexadecimal digits are kept.
    """
    texts = "".join(f"{name}\0{text}\n" for name, text in sorted(rows))
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


def _settings(run: Run) -> _Checked:
    """Compares the files with a run's settings with their hashes in the ledger.

    Then the settings in them are compared with the facts in the ledger, and with each
    other (`_check_configs`).
    """
    hashes = run.fact("files")
    if hashes is None and not (run.path / files.EXPERIMENT_FILE).is_file():
        return None

    present = {name for name in _SETTINGS_FILES if (run.path / name).is_file()}
    needed = {
        files.EXPERIMENT_FILE,
        files.ALPHABET_FILE,
        files.GIN_GIVEN_FILE,
        files.RUN_FILE,
    }
    lacking = (present | needed) - hashes.keys()
    must(not lacking, f"the ledger has no hash of {', '.join(sorted(lacking))}")

    for name, stated in hashes.items():
        must(name == Path(name).name, f"{name!r} is not the name of a file")
        path = run.path / name
        must(path.is_file(), f"{name} is missing")
        same = file_sha256(path, files.MOST_BYTES) == stated
        must(same, f"{name} was changed after the run wrote it")

    saved = files.read_object(
        run.path / files.EXPERIMENT_FILE, "Restore it from a copy."
    )
    alphabet = files.object_or_empty(run.path / files.ALPHABET_FILE)
    of_file = partial(part, saved, of=files.EXPERIMENT_FILE)
    facts = dict(run.comparability or {})
    compared = part(facts, "decoder", of="the ledger's comparability")
    decoder = {name: of_file("decoder", name) for name in compared}

    in_ledger = {
        "seed": run.fact("seed"),
        "batch size": run.fact("global_batch_size"),
        "targets": run.fact("targets"),
        "decoder": compared,
        "alphabet": facts["alphabet"],
        "rule": run.target_window,
        "number of replicas": run.fact("num_replicas"),
    }
    in_files = {
        "seed": of_file("training", "seed"),
        "batch size": of_file("pipeline", "global_batch_size"),
        "targets": of_file("training", "targets"),
        "decoder": decoder,
        "alphabet": [alphabet["characters"], alphabet["separator"]],
        "rule": of_file("training", "target_window"),
        "number of replicas": of_file("training", "num_replicas"),
    }
    for name, one in in_ledger.items():
        other = in_files[name]
        must(
            one == other,
            f"the ledger has the {name} {one!r}, the run's files {other!r}",
        )

    _check_configs(run.path, saved)
    stated = part(facts, "hash", of="the ledger's comparability")
    del facts["hash"]
    content = json.dumps(facts, sort_keys=True).encode()
    same = hashlib.sha256(content).hexdigest()[:16] == stated
    must(same, "what makes the run comparable does not match its hash")

    return f"{len(hashes)} files as they were written"


# Files that decide a run's result, so the ledger must have their hashes.
_SETTINGS_FILES = (
    files.EXPERIMENT_FILE,
    files.ALPHABET_FILE,
    files.LEXICON_FILE,
    files.PLUGINS_FILE,
    files.GIN_GIVEN_FILE,
    files.GIN_OPERATIVE_FILE,
    files.RUN_FILE,
)

# The class of gin that makes each section of experiment.json.
_SECTIONS = {
    "features": "FeatureConfig",
    "pipeline": "PipelineConfig",
    "augmentation": "AugmentationConfig",
    "decoder": "DecoderConfig",
    "training": "TrainingConfig",
}


def _check_configs(run_dir: Path, saved: dict[str, Any]) -> None:
    """Compares the three files that state a run's settings, value by value.

    Each value that was given must be the one that gin used, and that one must be in
    experiment.json. A value that gin looks up by name, such as an optimizer, is
    compared as a name only.
    """
    used = _plain_values(run_dir / files.GIN_OPERATIVE_FILE)
    for name, value in _plain_values(run_dir / files.GIN_GIVEN_FILE).items():
        place = (
            f"{files.GIN_GIVEN_FILE} has {name} = {value}, {files.GIN_OPERATIVE_FILE}"
        )
        must(used.get(name) == value, f"{place} {used.get(name)}")

    sections = {name: section for section, name in _SECTIONS.items()}

    # The model's class is the one that has all of the saved parameters.
    others = {name.partition(".")[0] for name in used} - sections.keys()
    of_model = [
        name
        for name in others
        if all(f"{name}.{parameter}" in used for parameter in saved["model"])
    ]
    if of_model:
        sections[of_model[0]] = "model"

    for name, value in used.items():
        class_name, _, parameter = name.partition(".")
        # num_replicas is filled in by the machine, and "@" begins the name of a class.
        by_name = value.startswith('"@') or parameter == "num_replicas"
        if class_name not in sections or by_name:
            continue

        saved_values = saved[sections[class_name]]
        must(parameter in saved_values, f"{files.EXPERIMENT_FILE} lacks {parameter}")
        other = json.dumps(saved_values[parameter])
        must(
            value == other,
            f"{files.EXPERIMENT_FILE} has {parameter} = {other}, gin {value}",
        )


def _plain_values(path: Path) -> dict[str, str]:
    """Returns a gin file's bindings as JSON texts, the last one of each name."""
    bindings = read_evidence(path).bindings
    return {
        s.name: json.dumps(s.value, default=repr)
        for s in bindings
        if s.parameter and not s.scope
    }


def _checkpoints(run: Run) -> _Checked:
    """Compares checkpoints with their hashes. Those that are missing are passed over.

    Checkpoints are large, so a submission leaves them out.
    """
    hashes = run.fact("checkpoints") or {}
    at_hand = 0
    for name, stated in hashes.items():
        must(name == Path(name).name, f"{name!r} is not the name of a file")
        path = run.path / files.CHECKPOINTS_FOLDER / name
        if path.is_file():
            must(file_sha256(path) == stated, f"{name} was changed after the run ended")
            at_hand += 1

    if not at_hand:
        return None

    return f"{at_hand} files as they were written"


def _shards(run: Run, shard_dir: Path | None) -> _Checked:
    """Compares the splits that the run read with those at hand, if there are any."""
    recorded = files.object_or_empty(run.path / files.RUN_FILE).get("shard_dir")
    folder = shard_dir or Path(str(recorded))
    if shard_dir is None and not folder.is_dir():
        return None

    for split, stated in (run.fact("shards") or {}).items():
        problem = f"{folder / split} holds other records than those of the run"
        must(shards_hash(folder / split) == stated, problem)

    return f"the records in {folder} are those of the run"


@cache
def shards_hash(folder: Path) -> str:
    """Returns a split's content hash, after comparing every shard with its own hash.

    All runs of a study read the same shards, so the result is kept.
    """
    index = read_index(folder)
    check_shards(folder, index, content=True)

    return index["content_hash"]


def verify_study(folder: Path, shard_dir: Path | None = None) -> Iterator[Check]:
    """Checks a study's plan, starts, runs, report and decision.

    Args:
        folder: the study's.
        shard_dir: as in `verify_run`.
    """
    plain = judged("files", partial(plain_files, folder))
    yield plain
    checked: list[StudyCheck] = []
    if plain.passed:
        yield judged("plan", partial(_plan, folder, checked))

    for study in checked:
        plans = list(study.plans.values())
        plan = plan_of(plans[-1])
        if any(event["key"] == "host" for event in read_events(folder / STARTS_FILE)):
            yield judged("hosts", partial(_hosts, folder, plan))

        yield judged("times", partial(_times, folder, study))

        for (experiment, seed), run_dir in study.runs.items():
            name = f"{experiment} seed {seed}"
            yield from _verify_run(run_dir, name, shard_dir)
            yield judged(
                f"{name}, as declared", partial(_as_declared, folder, study, run_dir)
            )

        for experiment, seed in study.repeated:
            run_dir = first_try(folder, experiment, seed)
            yield from _verify_run(
                run_dir, f"first try of {experiment} seed {seed}", shard_dir
            )

        yield judged("quiet machine", partial(check_quiet, study, folder))
        yield judged("report", partial(_report, plan, folder))
        if plans[-1]["until"]:
            yield judged("decision", partial(_decision, plan, folder))


def _plan(folder: Path, checked: list[StudyCheck]) -> _Checked:
    """Checks every sealed plan and the list of starts; adds the study to ``checked``.

    Whether the declared runs are those that are there is one sentence, which fails the
    check if it names a problem.
    """
    events = read_events(folder / STARTS_FILE)
    must(bool(events), f"{STARTS_FILE} is empty")
    check_starts(events, STARTS_FILE)

    for event in events:
        if event["key"] == "plan":
            file = event["value"]["file"]
            plan = check_plan(
                files.read_object(folder / file, "Restore it from a copy."), file
            )

    study = check_study(folder)
    begun_with = files.read_object(folder / PLAN_FILE, "Restore it from a copy.")
    planned = {name: begun_with.get(name) for name in ("corpus", "runs")}
    same = planned == {name: plan.identity[name] for name in planned}
    must(same, f"{PLAN_FILE} states other runs than the sealed plan")
    checked.append(study)
    must(not study.problems, study.sentence)

    return study.sentence


_Clock = tuple[float, float]  # seconds of the wall clock and of the monotonic clock


def _times(folder: Path, study: StudyCheck) -> _Checked:
    """Compares ledgers' clocks with those of the study's list of starts.

    The study's own process wrote the list, so a run whose ledger was changed alone
    would begin, end or note its marks at other times than the list.
    """
    events = read_events(folder / STARTS_FILE)
    hashes = chain_of(folder / STARTS_FILE)
    listed = [_clocks_of(event) for event in events]
    must(
        all(a[0] <= b[0] + 1 for a, b in pairwise(listed)),
        f"the times of {STARTS_FILE} fall",
    )
    # A ledger has the clocks of the host that trained its run.
    clocks = [_host_clocks(event) for event in events]

    # For each process that ended by itself: how long it took, and the part after its
    # last event.
    endings: list[tuple[str, float, float]] = []
    for name, run_dir, noted in _tries(folder, study, events):
        run = load_run(run_dir)
        for session in run.timeline.sessions:
            first = run.events[session.start]
            last = run.events[session.stop - 1]
            begins = hashes.index(first["value"]["declared"]["start"])
            later = [
                (place, key)
                for place, key, _ in noted
                if place > begins and key != "begun"
            ]
            # Without an end, the study was killed before it could note one.
            ends = next(iter(later), (None, "start"))
            stop = clocks[ends[0]] if ends[1] == "end" else None
            _check_session(name, first, last, clocks[begins], stop)
            if stop is None:
                continue

            passed_s = [
                sides[ends[0]][1] - sides[begins][1] for sides in (clocks, listed)
            ]
            problem = f"{name} took {passed_s[0]:.1f} s on its host, and {passed_s[1]:.1f} s here"
            allowed_s = _ANSWERED_S + CLOCKS_APART[1] * passed_s[1]
            must(abs(passed_s[0] - passed_s[1]) <= allowed_s, problem)
            exit_code = events[ends[0]]["value"]["exit_code"]
            check_ending(name, run, session, exit_code)

            begun = any(
                key == "begun" and begins < place < ends[0] for place, key, _ in noted
            )

            steps = [i for i in run.timeline.of("train_step") if i in session]
            trained_s = stop[1] - _clocks_of(run.events[steps[0]])[1] if steps else 0.0
            must(
                begun or trained_s <= _NOTED_S,
                f"{name} trained, but the list doesn't say so",
            )
            if exit_code == 0:
                took_s = stop[1] - clocks[begins][1]
                endings.append((name, took_s, stop[1] - _clocks_of(last)[1]))

        for place, key, value in noted:
            if key != "start" and value.get("ledger") is not None:
                _check_mark(name, run, key, value["ledger"]["bytes"], clocks[place])

    if endings:
        usual_s = sorted(ending[2] for ending in endings)[len(endings) // 2]
    else:
        usual_s = 0.0

    for name, took_s, ending_s in endings:
        allowed_s = usual_s + _ENDING[0] + _ENDING[1] * took_s
        problem = f"{name} ended {ending_s:.1f} s before its process did, others {usual_s:.1f} s"
        must(ending_s <= allowed_s, problem)

    return f"{len(study.runs)} runs within the times of {STARTS_FILE}"


def _host_clocks(event: dict[str, Any]) -> _Clock:
    """Returns the clocks of the host that trains the run, as the event states them.

    On one machine they are the clocks of the study.
    """
    clock = event["value"].get("clock")
    if clock is None:
        return _clocks_of(event)

    return finite(clock["time_ms"]) / 1000, finite(clock["mono_s"])


def _hosts(folder: Path, plan: Plan) -> _Checked:
    """Checks that hosts stayed the machines they were, and are alike if needed."""
    events = [
        event for event in read_events(folder / STARTS_FILE) if event["key"] == "host"
    ]
    descriptions = {
        event["value"]["host"]: event["value"]["description"] for event in events
    }
    first, *others = descriptions

    for event in events:
        name = event["value"]["host"]
        other = unlike(event["value"]["description"], descriptions[name])
        must(not other, f"{name} became another machine: {'; '.join(other)}")

    for name in others if plan.config.test == "groups" else ():
        other = unlike(descriptions[name], descriptions[first])
        must(not other, f"{name} is not like {first}: {'; '.join(other)}")

    return f"{len(descriptions)} hosts, each seed on one of them"


# A line's place in the list, its key and value.
_Noted = list[tuple[int, str, dict[str, Any]]]


def _tries(
    folder: Path, study: StudyCheck, events: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, Path, _Noted]]:
    """Yields the tries of each run: a name, the folder, and what the list notes of it.

    Tries that were abandoned with their hosts are left out: their files may be
    incomplete.
    """
    for run in dict.fromkeys([*study.repeated, *study.runs]):
        name = f"{run[0]} seed {run[1]}"

        first: _Noted = []
        noted: _Noted = []
        for place, event in enumerate(events):
            value = event["value"]
            if (value.get("experiment"), value.get("seed")) != run:
                continue

            noted.append((place, event["key"], value))
            if event["key"] == "again":
                first = noted
            if event["key"] in ("again", "abandoned"):
                noted = []

        if first:
            yield f"first try of {name}", first_try(folder, *run), first
        if run in study.runs:
            yield name, study.runs[run], noted


def _clocks_of(event: dict[str, Any]) -> _Clock:
    """Returns the wall clock and the monotonic clock of an event, in seconds."""
    return finite(event["time_ms"]) / 1000, finite(event["metadata"]["mono_s"])


def _check_session(
    name: str,
    first: dict[str, Any],
    last: dict[str, Any],
    start: _Clock,
    stop: _Clock | None,
) -> None:
    """Checks that a process began and ended when the study's list says so.

    Args:
        name: of the run, for errors.
        first: the session's first event, which states the age of its process.
        last: the session's last event.
        start: the clocks when the study noted the start.
        stop: the clocks when it noted the end; None if it was killed before.
    """
    age_s = finite(first["metadata"].get("process_age_s", 0.0))
    must(age_s >= 0, f"{name} has a process younger than 0 s")

    for place, clock in enumerate(("wall", "monotonic")):
        late_s = _clocks_of(first)[place] - age_s - start[place]
        problem = f"{name} begins {late_s:.1f} s after its start in the study's list"
        must(abs(late_s) <= _NOTED_S, f"{problem}, by the {clock} clock")
        if stop is not None:
            late_s = _clocks_of(last)[place] - stop[place]
            problem = f"{name} goes on {late_s:.1f} s after its end in the study's list"
            must(late_s <= _NOTED_S, f"{problem}, by the {clock} clock")


def _check_mark(name: str, run: Run, key: str, size: int, noted: _Clock) -> None:
    """Checks that a ledger had just reached a line when the study noted it.

    Args:
        name: of the run, for errors.
        run: has the ledger.
        key: "begun" or the like: the kind of the study's line.
        size: bytes of the ledger up to the line.
        noted: the clocks when the study noted it.
    """
    place = _line_ends(run.path / files.EVENTS_FILE).get(size)
    must(place is not None, f"{name}: the list names a line that the ledger lacks")
    written_s = run.events[place]["metadata"]["mono_s"]
    must(
        written_s <= noted[1] + _NOTED_S,
        f"{name}: a line is noted before it was written",
    )
    following = run.events[place + 1 : place + 2]
    if key == "begun" and following and following[0]["key"] != "session_start":
        next_s = following[0]["metadata"]["mono_s"]
        problem = f"{name} had trained longer by its own clock than by the study's list"
        must(next_s >= noted[1] - _NOTED_S, problem)


def _line_ends(path: Path) -> dict[int, int]:
    """Maps the size of a ledger after each line to the index of the line's event."""
    ends = {}
    size = 0
    for number, line in enumerate(files.read_bytes(path).split(b"\n")[:-1]):
        size += len(line) + 1
        ends[size] = number

    return ends


def _as_declared(folder: Path, study: StudyCheck, run_dir: Path) -> _Checked:
    """Checks that a run has the settings, targets, data and code of its sealed plan."""
    run = load_run(run_dir)
    declared = declarations(run_dir)
    place = run_dir.relative_to(folder).as_posix()
    plan = study.plans[declared[-1]["plan"]]
    # An experiment's only run moves to another folder when seeds are added. So the run
    # may be in a later plan than the one that it was begun with.
    runs = []
    for each in study.plans.values():
        runs += [planned for planned in each["runs"] if planned["folder"] == place]

    named = runs[-1]
    path = run_dir / files.GIN_GIVEN_FILE
    lines = [statement.text for statement in read_evidence(path).statements]
    lines += plan["experiments"][named["experiment"]]["environment"]

    read_lines = files.read_text(path, "Restore it from a copy.").splitlines()
    without_effect = {
        line.partition(": ")[2] for line in read_lines if line.startswith(DROPPED)
    }
    planned = [
        s for s in named["statements"] if s.splitlines()[0] not in without_effect
    ]
    must(lines == planned, f"{files.GIN_GIVEN_FILE} has other statements than the plan")

    trained = plan["trained"][named["experiment"]]
    shards = run.fact("shards")
    must(run.fact("targets") == trained["targets"], "the targets are not the plan's")
    decoder = run.comparability["decoder"]
    must(decoder.items() <= trained["decoder"].items(), "the decoder is not the plan's")
    saved = files.read_object(
        run_dir / files.EXPERIMENT_FILE, "Restore it from a copy."
    )
    must(
        trained["decoder"] == saved["decoder"],
        "the decoder's settings are not the plan's",
    )

    for name in ("target_window", "second_decoder"):
        must(trained[name] == saved["training"][name], f"{name} is not the plan's")

    division = run.comparability.get("division", "open")
    # Without word separators, a run is always open; the plan was sealed before any
    # alphabet.
    separated = run.comparability["alphabet"][1] is not None
    same = trained["division"] == division or not separated
    must(same, f"the division is {division}, but {trained['division']} in the plan")

    splits = {"train", "validation", *shards}
    other = [
        name for name in sorted(splits) if shards.get(name) != plan["data"].get(name)
    ]
    must(not other, f"the run read other data than the plan names: {', '.join(other)}")

    for each in declared:
        same = each["code"] == study.plans[each["plan"]]["code"]["files"]
        must(same, "the code was changed after the plan was sealed")
        plugins = sorted(study.plans[each["plan"]]["plugins"].values())
        must(each["plugins"] == plugins, "the plug-ins are not the plan's")

    listed = read_events(folder / STARTS_FILE)
    by_hash = dict(zip(chain_of(folder / STARTS_FILE), listed, strict=False))
    begun = by_hash.get(declared[0]["start"])
    # The clock of a host may differ from the study's; `_times` compares it with the
    # list.
    if begun is None or "clock" not in begun["value"]:
        early = run.events[0]["time_ms"] < listed[0]["time_ms"] - _EARLY_MS
        must(not early, "the run began before the plan was sealed")

    return "settings, targets, data and code of the plan"


def _report(plan: Plan, folder: Path) -> _Checked:
    """Makes report.json anew from the ledgers and compares every number with it."""
    # Imported here: checking a single run needs no figures.
    from tfasr.studies.report import (
        Measured,
        chapters,
        scores_of,
        study_values,
        widths_of,
    )

    path = folder / "report" / "report.json"
    if not path.is_file():
        return None

    measured = Measured(widths_of(plan, folder), scores_of(plan, folder))
    again = json.loads(json.dumps(study_values(chapters(plan, folder), measured)))
    same = again == files.read_object(path, "Make it again with tfasr study --resume.")
    must(same, f"{path.name} has other numbers than the ledgers give")

    return f"every number of {path.name} follows from the ledgers"


def _decision(plan: Plan, folder: Path) -> _Checked:
    """Makes the verdict anew from the ledgers and compares it with decision.txt."""
    text = decision_text(plan, decision(plan, folder))
    stated = files.read_text(folder / DECISION_FILE, "Restore it from a copy.").strip()
    must(stated == text, f"{DECISION_FILE} states: {stated} The runs give: {text}")

    return text


def published(path: Path, chain: list[str], wanted: str) -> Check:
    """Checks that a hash that was published earlier is still in a chain.

    Args:
        path: the file that the chain is of, for the line.
        chain: each line's hash, of a ledger, a study's list or a submission.
        wanted: the published hash.
    """
    at = chain.index(wanted) + 1 if wanted in chain else 0
    if at:
        text = f"line {at} of {path.name} has it"
    else:
        text = f"no line of {path.name} has {wanted}"

    return Check("published hash", bool(at), text)
