"""Checks what a run states, by recomputing it from its ledger, hypotheses and files."""

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
from tfasr.tta.policies import scores_at
from tfasr.tta.run import Run, load_run
from tfasr.verifying.form import (
    CLOCKS_APART,
    check_edges,
    check_fields,
    check_values,
    finite,
    must,
    part,
)

# A ledger has times in milliseconds, so a step's booked time may exceed the time that
# passed by up to 1 ms.
_ROUNDING_S = 0.001
# A run can't have been written in the future; clocks may be a day off.
_LATE_S = 86400.0
Checked = str | None  # what was compared; None if there was nothing to compare with

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
    name: str  # the run, if it is about one, and what was checked
    passed: bool | None  # None if there was nothing to check it with
    text: str

    @property
    def line(self) -> str:
        """The outcome in one line. Text from the checked files can't forge another one."""
        state = {True: "ok", False: "FAILED", None: "not checked"}[self.passed]
        return printable(f"{state:<12}{self.name}: {self.text}", one_line=True)


def unchecked(checks: Sequence[Check], kinds: Iterable[str]) -> str:
    """Returns the last line of a verification: everything that no check has covered."""
    skipped = [check.name for check in checks if check.passed is None]
    return printable(f"not checked: {'; '.join([*kinds, *skipped])}", one_line=True)


def judged(name: str, check: Callable[[], Checked]) -> Check:
    """Calls a check, which raises if something is wrong, and returns its outcome."""
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

    if text:
        return Check(name, text is not None, text)

    return Check(name, None, "no data to check it")


def plain_files(folder: Path) -> Checked:
    """Checks, before anything is read, that a folder has no links, pipes or devices."""
    return f"{files.check_plain(folder)} files and folders, no links"


def verify_run(
    run_dir: Path, name: str, shard_dir: Path | None = None
) -> Iterator[Check]:
    """Checks a run's ledger, and its other files against the ledger."""
    plain = judged(f"{name}, files", partial(plain_files, run_dir))
    yield plain
    if plain.passed:
        yield from verify_plain_run(run_dir, name, shard_dir)


def verify_plain_run(
    run_dir: Path, name: str, shard_dir: Path | None
) -> Iterator[Check]:
    loaded: list[Run] = []
    yield judged(f"{name}, chain", partial(_chain, run_dir, loaded))
    for run in loaded:
        for check in (_events, _clocks, _counts, _scores, _settings, _checkpoints):
            yield judged(f"{name}, {check.__name__[1:]}", partial(check, run))
        yield judged(f"{name}, shards", partial(_shards, run, shard_dir))


def _chain(run_dir: Path, loaded: list[Run]) -> Checked:
    """Checks the hash in each line of the ledger, and loads the run.

    The run is appended to ``loaded``, so that the other checks are left out if the ledger
    can't be read. A changed, missing or added line breaks the chain of hashes.
    """
    run = load_run(run_dir)
    must(
        run.ledger_hash is not None,
        "the lines have no hashes: an older tfasr wrote them",
    )
    loaded.append(run)

    return f"{len(run.events)} lines, the last hash is {run.ledger_hash}"


def _clocks(run: Run) -> Checked:
    """Checks that both clocks of each session run forwards, and equally far.

    A forged time would have to change the wall clock, the monotonic clock and every later
    line. The intervals must add up to the run's time, too.
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
        wall_s = (times_ms[-1] - times_ms[1]) / 1000
        mono_s = mono[-1] - mono[0]
        allowed_s = CLOCKS_APART[0] + CLOCKS_APART[1] * mono_s
        apart = (
            f"{wall_s:.1f} s by the wall clock are {mono_s:.1f} s by the monotonic one"
        )
        must(abs(wall_s - mono_s) <= allowed_s, apart)
        _check_steps(events)
        last_ms = times_ms[-1]

    must(last_ms / 1000 <= time.time() + _LATE_S, "the run ends in the future")
    sums = abs(sum(run.intervals.values()) - run.wall_s)
    must(sums < 0.001, f"the intervals' sum and the whole time differ by {sums:.3f} s")

    return f"{len(line.sessions)} sessions, {run.wall_s:.1f} s in all"


def _check_steps(events: Sequence[dict[str, Any]]) -> None:
    """Checks that a session's steps book no more seconds than passed since the one before."""
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


# What each session of tfasr train states, and what only the first one does.
_OF_EACH_SESSION = (
    "run_start",
    "conditions",
    "files",
    "shards",
    "comparability",
    "seed",
    "targets",
)
_OF_EACH_SESSION += (
    "global_batch_size",
    "train_samples",
    "eval_samples",
    "num_replicas",
)
_OF_EACH_SESSION += (
    "parameters",
    "evaluation_placement",
    "shared_with_training",
    "opt_name",
)
_OF_EACH_SESSION += (
    "instruction_set",
    "missing_compiled_parts",
    "opt_base_learning_rate",
)
_OF_EACH_SESSION += ("init_start", "init_stop")


def _events(run: Run) -> Checked:
    """Checks that sessions follow each other, and that each has the events that clocks
    need.
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
    """Checks that no step and no evaluation is missing, doubled or out of order.

    Steps that were lost in a crash and repeated count once.
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
    """Checks that each epoch has all utterances of the split, and each evaluation those
    before.
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
    """Maps each scored evaluation (the epochs trained by then) to the event that it
    begins with.
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
    """Counts the errors of each evaluation again, if its hypotheses were kept.

    The counts must be those of the ledger. Losses can't be computed again.
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
    """Counts an evaluation's errors again, those of a second decoder too."""
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
    """Returns a hash of ids and transcripts; runs record the one of their validation set."""
    texts = "".join(f"{name}\0{text}\n" for name, text in sorted(rows))
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


def _settings(run: Run) -> Checked:
    """Checks the files that state the run's settings against the ledger.

    Each file must have the hash that the ledger states, and the files must agree with it
    and with each other. A recorded loop has no such files.
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
    for name, one, other in (
        ("seed", run.fact("seed"), of_file("training", "seed")),
        (
            "batch size",
            run.fact("global_batch_size"),
            of_file("pipeline", "global_batch_size"),
        ),
        ("targets", run.fact("targets"), of_file("training", "targets")),
        ("decoder", compared, decoder),
        (
            "alphabet",
            facts["alphabet"],
            [alphabet["characters"], alphabet["separator"]],
        ),
        ("rule", run.target_window, of_file("training", "target_window")),
        (
            "number of replicas",
            run.fact("num_replicas"),
            of_file("training", "num_replicas"),
        ),
    ):
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


_SETTINGS_FILES = (files.EXPERIMENT_FILE, files.ALPHABET_FILE, files.LEXICON_FILE)
_SETTINGS_FILES += (files.PLUGINS_FILE, files.GIN_GIVEN_FILE, files.GIN_OPERATIVE_FILE)
_SETTINGS_FILES += (files.RUN_FILE,)
_SECTIONS = {
    "features": "FeatureConfig",
    "pipeline": "PipelineConfig",
    "augmentation": "AugmentationConfig",
    "decoder": "DecoderConfig",
    "training": "TrainingConfig",
}


def _check_configs(run_dir: Path, saved: dict[str, Any]) -> None:
    """Compares the three files that state a run's settings with each other, value by value.

    A value that gin looks up by name, such as an optimizer, is compared as a name only.
    """
    used = _plain_values(run_dir / files.GIN_OPERATIVE_FILE)

    for name, value in _plain_values(run_dir / files.GIN_GIVEN_FILE).items():
        place = (
            f"{files.GIN_GIVEN_FILE} has {name} = {value}, {files.GIN_OPERATIVE_FILE}"
        )
        must(used.get(name) == value, f"{place} {used.get(name)}")

    classes = {name.partition(".")[0] for name in used}
    of_model = [
        c for c in classes if {f"{c}.{n}" for n in saved["model"]} <= used.keys()
    ]
    # num_replicas is filled in by the machine, and text names classes.
    for section, class_name in {**_SECTIONS, "model": "".join(of_model[:1])}.items():
        of_class = {
            n.partition(".")[2]: v
            for n, v in used.items()
            if n.startswith(f"{class_name}.")
        }
        for parameter, value in of_class.items():
            if value.startswith('"@') or parameter == "num_replicas":
                continue
            must(
                parameter in saved[section],
                f"{files.EXPERIMENT_FILE} lacks {parameter}",
            )
            other = json.dumps(saved[section][parameter])
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
    """Checks the checkpoints that are still there against their hashes in the ledger.

    Deleted checkpoints are no mistake: a run may take much space.
    """
    hashes = run.fact("checkpoints") or {}
    at_hand = 0

    for name, stated in hashes.items():
        must(name == Path(name).name, f"{name!r} is not the name of a file")
        path = run.path / files.CHECKPOINTS_FOLDER / name
        if path.is_file():
            must(file_sha256(path) == stated, f"{name} was changed after the run ended")
            at_hand += 1

    return f"{at_hand} files as they were written" if at_hand else None


def _shards(run: Run, shard_dir: Path | None) -> Checked:
    """Checks that the prepared splits hold the records that the run trained on.

    The folder is ``shard_dir`` or, by default, the one that the run used, if it is still
    there.
    """
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
    """Returns a split's content hash, after comparing every shard with its recorded hash."""
    index = read_index(folder)
    check_shards(folder, index, content=True)
    return index["content_hash"]


def published(path: Path, chain: list[str], wanted: str) -> Check:
    """Checks that a published hash is in ``chain``, those of a ledger, study or submission."""
    at = chain.index(wanted) + 1 if wanted in chain else 0
    if at:
        text = f"line {at} of {path.name} has it"
    else:
        text = f"no line of {path.name} has {wanted}"

    return Check("published hash", bool(at), text)
