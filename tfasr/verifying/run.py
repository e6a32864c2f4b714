"""Checks what a run states, by recomputing it from its files.

``tfasr verify`` calls `verify_run`, and prints a line for each `Check`. First `form`
checks that the ledger has the form that tfasr writes. Then each check compares two
things that a forger would have to change together, such as a ledger with the hypotheses
or with shards.

Nothing of what is checked is executed: gin files are read as evidence, and plug-ins are
only hashed. What no check covers is listed in `UNCHECKED_OF_RUNS`, and printed as the
last line.
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
from tfasr.kit.gin import read_evidence
from tfasr.ledger.events import LEDGER_FORMAT
from tfasr.scoring.errors import count_errors, read_transcripts
from tfasr.tta.metrics import compute_metrics, computed_metrics
from tfasr.tta.policies import PAPER, scores_at
from tfasr.tta.run import Run, load_run
from tfasr.verifying.form import (
    check_edges,
    check_fields,
    check_values,
    finite,
    must,
    must_agree,
    part,
)

# A step's booked time may exceed the time that passed by up to 1 ms: both are rounded.
_ROUNDING_S = 0.001

# A run can't have been written in the future; clocks may be a day off.
_LATE_S = 86400.0

# What was compared, for the line of the check; None if there was nothing to compare.
Checked = str | None

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


def judged(name: str, check: Callable[[], Checked]) -> Check:
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


def plain_files(folder: Path) -> Checked:
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
        yield from verify_plain_run(run_dir, name, shard_dir)


def verify_plain_run(
    run_dir: Path, name: str, shard_dir: Path | None
) -> Iterator[Check]:
    """Yields a run's checks; all but the first need a ledger whose hashes are right."""
    loaded: list[Run] = []
    yield judged(f"{name}, chain", partial(_chain, run_dir, loaded))
    for run in loaded:
        for check in (_events, _clocks, _counts, _scores, _settings, _checkpoints):
            yield judged(f"{name}, {check.__name__[1:]}", partial(check, run))

        yield judged(f"{name}, shards", partial(_shards, run, shard_dir))


def _chain(run_dir: Path, loaded: list[Run]) -> Checked:
    """Checks the hash of each line of a ledger, and adds the run to ``loaded``."""
    run = load_run(run_dir)
    must(
        run.ledger_hash is not None,
        "the lines have no hashes: an older tfasr wrote them",
    )
    loaded.append(run)

    return f"{len(run.events)} lines, the last hash is {run.ledger_hash}"


def _clocks(run: Run) -> Checked:
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


def _events(run: Run) -> Checked:
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


def _counts(run: Run) -> Checked:
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

    # In a cluster, the chief books only its share. A recorded loop needn't say how many
    # utterances an epoch has.
    in_cluster = isinstance(run.fact("cluster"), dict)
    trained = (run.path / files.EXPERIMENT_FILE).is_file()
    counted = trained or run.fact("train_samples") is not None
    if counted and not in_cluster:
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


def _scores(run: Run) -> Checked:
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


def _settings(run: Run) -> Checked:
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
        # Readers take the policy's rule for a ledger that states none.
        "rule": (
            run.target_window or PAPER.window,
            run.timeline.evaluations_per_epoch,
        ),
        "number of replicas": run.fact("num_replicas"),
    }
    in_files = {
        "seed": of_file("training", "seed"),
        "batch size": of_file("pipeline", "global_batch_size"),
        "targets": of_file("training", "targets"),
        "decoder": decoder,
        "alphabet": [alphabet["characters"], alphabet["separator"]],
        "rule": (
            of_file("training", "target_window"),
            of_file("training", "evaluations_per_epoch"),
        ),
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
    # Without it nothing would be compared with the saved model.
    must(
        of_model,
        f"{files.EXPERIMENT_FILE} has parameters of a model that gin doesn't have",
    )
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


def _checkpoints(run: Run) -> Checked:
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


def _shards(run: Run, shard_dir: Path | None) -> Checked:
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
