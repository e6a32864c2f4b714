"""Checks what runs and studies state, by recomputing it from ledgers, hypotheses and files."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

from tfasr.data.manifest import check_shards, file_sha256, read_index
from tfasr.errors import UsageError
from tfasr.kit import files
from tfasr.kit.gin import DROPPED, read_gin
from tfasr.ledger.declared import STARTS_FILE, StudyCheck, check_study, declarations
from tfasr.ledger.events import read_events
from tfasr.ledger.intervals import evaluated_epoch
from tfasr.scoring.errors import count_errors, read_transcripts
from tfasr.studies.perform import DECISION_FILE, decision, decision_text
from tfasr.studies.plan import Plan, plan_of
from tfasr.tta.run import Run, load_run

_CLOCKS_APART = (2.0, 0.01)  # a session's two clocks may differ by 2 s plus 1 % of its duration
_ROUNDING_S = 0.001  # a step's booked time may exceed the time that passed by up to 1 ms
_EARLY_MS = 2000  # milliseconds by which a run's first event may precede the plan's sealing
_COUNTED = ("wer", "cer", "cer_reference", "substitutions", "deletions", "insertions", "utterances")
_Checked = str | None  # what was compared; None if there was nothing to compare with


@dataclass(frozen=True)
class Check:
    name: str  # the run, if it is about one, and what was checked
    passed: bool | None  # None if there was nothing to check it with
    text: str

    @property
    def line(self) -> str:
        state = {True: "ok", False: "FAILED", None: "not checked"}[self.passed]
        return f"{state:<12}{self.name}: {self.text}"


def judged(name: str, check: Callable[[], _Checked]) -> Check:
    """Calls a check, which raises if something is wrong, and returns its outcome."""
    try:
        text = check()
    except (UsageError, OSError) as error:
        return Check(name, False, str(error))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return Check(name, False, f"a value is missing or of a wrong kind: {error!r}")
    return Check(name, text is not None, text) if text else Check(name, None, "no data to check it")


def must(holds: bool, problem: str) -> None:
    if not holds:
        raise UsageError(problem)


def verify_run(run_dir: Path, name: str, shard_dir: Path | None = None) -> Iterator[Check]:
    """Checks a run's ledger, and its other files against the ledger."""
    loaded: list[Run] = []
    yield judged(f"{name}, chain", partial(_chain, run_dir, loaded))
    for run in loaded:
        for check in (_clocks, _counts, _scores, _settings, _checkpoints):
            yield judged(f"{name}, {check.__name__[1:]}", partial(check, run))
        yield judged(f"{name}, shards", partial(_shards, run, shard_dir))


def _chain(run_dir: Path, loaded: list[Run]) -> _Checked:
    run = load_run(run_dir)
    must(run.ledger_hash is not None, "the lines have no hashes: an older tfasr wrote them")
    loaded.append(run)
    return f"{len(run.events)} lines, the last hash is {run.ledger_hash}"


def _clocks(run: Run) -> _Checked:
    line, last_ms = run.timeline, 0
    for session in line.sessions:
        events = [run.events[index] for index in session]
        mono = [event["metadata"]["mono_s"] for event in events]
        times_ms = [last_ms, *(event["time_ms"] for event in events)]
        must(all(a <= b for a, b in pairwise(mono)), "the monotonic clock runs backwards")
        must(all(a <= b + 1000 for a, b in pairwise(times_ms)), "the wall clock runs backwards")
        wall_s, mono_s = (times_ms[-1] - times_ms[1]) / 1000, mono[-1] - mono[0]
        allowed_s = _CLOCKS_APART[0] + _CLOCKS_APART[1] * mono_s
        apart = f"{wall_s:.1f} s by the wall clock are {mono_s:.1f} s by the monotonic one"
        must(abs(wall_s - mono_s) <= allowed_s, apart)
        before_s, last_ms = mono[0], times_ms[-1]
        for event in events:
            if event["key"] == "train_step":
                value, now_s = event["value"], event["metadata"]["mono_s"]
                booked_s = sum(value[part] for part in ("input_wait_s", "compile_s", "train_s"))
                took_s, step = now_s - before_s, event["metadata"]["step"]
                problem = f"step {step} books {booked_s:.3f} s, but only {took_s:.3f} s passed"
                must(0 <= booked_s <= took_s + _ROUNDING_S, problem)
                before_s = now_s
    sums = abs(sum(run.intervals.values()) - run.wall_s)
    must(sums < 0.001, f"the intervals' sum and the whole time differ by {sums:.3f} s")
    return f"{len(line.sessions)} sessions, {run.wall_s:.1f} s in all"


def _counts(run: Run) -> _Checked:
    line = run.timeline
    steps = [i for i in line.of("train_step") if line.useful[i]]
    numbers = [line.metadata[i]["step"] for i in steps]
    must(numbers == list(range(1, len(numbers) + 1)), "steps are missing, doubled or reordered")
    utterances: Counter[int] = Counter()
    for i in steps:
        utterances[line.metadata[i]["epoch_num"]] += run.events[i]["value"]["utterances"]
    wanted = run.fact("train_samples")
    odd = [n for n in sorted(utterances)[:-1] if utterances[n] != wanted]
    if not isinstance(run.fact("cluster"), dict):  # in a cluster, the chief books only its share
        must(not odd, f"epoch {odd[:1]} doesn't have the split's {wanted} utterances")
    share = run.timeline.evaluations_per_epoch
    scored = {round(epoch * share) for epoch in _evaluations(run)}
    missing = sorted(set(range(1, max(scored, default=0) + 1)) - scored)
    epochs = [str(n / share if n % share else n // share) for n in missing]
    must(not missing, f"the evaluation of epoch {', '.join(epochs)} is missing")
    return f"{len(numbers)} steps, {len(scored)} evaluations"


def _evaluations(run: Run) -> dict[float, int]:
    """Maps each evaluation (the epochs trained by then) to the index of its last scores' event."""
    line = run.timeline
    useful = (i for i in line.of("tracked_stats") if line.useful[i])
    return {evaluated_epoch(line.metadata[i]): i for i in useful}


def _scores(run: Run) -> _Checked:
    stated, last = run.comparability or {}, _evaluations(run)
    written = {epoch: files.hypotheses_file(run.path, epoch) for epoch in last}
    if not any(path.is_file() for path in written.values()):
        return None
    for epoch, index in last.items():
        rows, scores = read_transcripts(written[epoch]), run.events[index]["value"]
        counts = count_errors([r.reference for r in rows], [r.hypothesis for r in rows]).to_json()
        wrong = [n for n in _COUNTED if n in scores and abs(scores[n] - counts[n]) > 1e-9]
        at = f"epoch {epoch}: the hypotheses"
        must(not wrong, f"{at} give other values of {', '.join(wrong)} than the ledger")
        must(len(rows) == run.fact("eval_samples"), f"{at} are not of all utterances")
        references = references_hash((row.id, row.reference) for row in rows)
        same = references == stated.get("validation_references")
        must(same, f"{at} are of other references than the validation split's")
    return f"{len(last)} evaluations counted again"


def references_hash(rows: Iterable[tuple[str, str]]) -> str:
    """Returns a hash of ids and transcripts; runs record the one of their validation set."""
    texts = "".join(f"{name}\0{text}\n" for name, text in sorted(rows))
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


def _settings(run: Run) -> _Checked:
    hashes = run.fact("files")
    if hashes is None:
        return None
    for name, stated in hashes.items():
        path = run.path / Path(name).name
        must(path.is_file(), f"{name} is missing")
        must(file_sha256(path) == stated, f"{name} was changed after the run wrote it")
    saved = files.read_object(run.path / files.EXPERIMENT_FILE, "Restore it from a copy.")
    alphabet = files.object_or_empty(run.path / files.ALPHABET_FILE)
    facts = dict(run.comparability or {})
    for name, one, other in (
        ("seed", run.fact("seed"), saved["training"]["seed"]),
        ("batch size", run.fact("global_batch_size"), saved["pipeline"]["global_batch_size"]),
        ("targets", run.fact("targets"), saved["training"]["targets"]),
        ("decoder", facts["decoder"], {n: saved["decoder"][n] for n in facts["decoder"]}),
        ("alphabet", facts["alphabet"], [alphabet["characters"], alphabet["separator"]]),
        ("rule", run.target_window, saved["training"]["target_window"]),
    ):
        must(one == other, f"the ledger has the {name} {one!r}, the run's files {other!r}")
    stated = facts.pop("hash")
    content = json.dumps(facts, sort_keys=True).encode()
    same = hashlib.sha256(content).hexdigest()[:16] == stated
    must(same, "what makes the run comparable does not match its hash")
    return f"{len(hashes)} files as they were written"


def _checkpoints(run: Run) -> _Checked:
    hashes, at_hand = run.fact("checkpoints") or {}, 0
    for name, stated in hashes.items():
        path = run.path / files.CHECKPOINTS_FOLDER / Path(name).name
        if path.is_file():
            must(file_sha256(path) == stated, f"{name} was changed after the run ended")
            at_hand += 1
    return f"{at_hand} files as they were written" if at_hand else None


def _shards(run: Run, shard_dir: Path | None) -> _Checked:
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


def verify_study(folder: Path, shard_dir: Path | None = None) -> Iterator[Check]:
    checked: list[StudyCheck] = []
    yield judged("plan", partial(_plan, folder, checked))
    for study in checked:
        plans = list(study.plans.values())
        plan = plan_of(plans[-1])
        for (experiment, seed), run_dir in study.runs.items():
            name = f"{experiment} seed {seed}"
            yield from verify_run(run_dir, name, shard_dir)
            yield judged(f"{name}, as declared", partial(_as_declared, folder, study, run_dir))
        yield judged("report", partial(_report, plan, folder))
        if plans[-1]["until"]:
            yield judged("decision", partial(_decision, plan, folder))


def _plan(folder: Path, checked: list[StudyCheck]) -> _Checked:
    study = check_study(folder)
    checked.append(study)
    must(not study.problems, study.sentence)
    return study.sentence


def _as_declared(folder: Path, study: StudyCheck, run_dir: Path) -> _Checked:
    run, declared = load_run(run_dir), declarations(run_dir)
    place = run_dir.relative_to(folder).as_posix()
    plan = study.plans[declared[-1]["plan"]]
    # An experiment's only run moves to another folder when seeds are added.
    named = [r for p in study.plans.values() for r in p["runs"] if r["folder"] == place][-1]
    path = run_dir / files.GIN_GIVEN_FILE
    lines = [statement.text for statement in read_gin([str(path)]).statements]
    lines += plan["experiments"][named["experiment"]]["environment"]
    read_lines = path.read_text(encoding="utf-8").splitlines()
    without_effect = {line.partition(": ")[2] for line in read_lines if line.startswith(DROPPED)}
    planned = [s for s in named["statements"] if s.splitlines()[0] not in without_effect]
    must(lines == planned, f"{files.GIN_GIVEN_FILE} has other statements than the plan")
    trained, shards = plan["trained"][named["experiment"]], run.fact("shards")
    must(run.fact("targets") == trained["targets"], "the targets are not the plan's")
    decoder = run.comparability["decoder"]
    must(decoder.items() <= trained["decoder"].items(), "the decoder is not the plan's")
    other = [split for split in shards if shards[split] != plan["data"].get(split)]
    must(not other, f"the run read other data than the plan names: {', '.join(other)}")
    for each in declared:
        same = each["code"] == study.plans[each["plan"]]["code"]["files"]
        must(same, "the code was changed after the plan was sealed")
        plugins = sorted(study.plans[each["plan"]]["plugins"].values())
        must(each["plugins"] == plugins, "the plug-ins are not the plan's")
    sealed_ms = read_events(folder / STARTS_FILE)[0]["time_ms"]
    early = run.events[0]["time_ms"] < sealed_ms - _EARLY_MS
    must(not early, "the run began before the plan was sealed")
    return "settings, targets, data and code of the plan"


def _report(plan: Plan, folder: Path) -> _Checked:
    # Imported here: checking a single run needs no figures.
    from tfasr.studies.report import Measured, chapters, scores_of, study_values, widths_of

    path = folder / "report" / "report.json"
    if not path.is_file():
        return None
    measured = Measured(widths_of(plan, folder), scores_of(plan, folder))
    again = json.loads(json.dumps(study_values(chapters(plan, folder), measured)))
    same = again == files.read_object(path, "Make it again with tfasr study --resume.")
    must(same, f"{path.name} has other numbers than the ledgers give")
    return f"every number of {path.name} follows from the ledgers"


def _decision(plan: Plan, folder: Path) -> _Checked:
    text = decision_text(plan, decision(plan, folder))
    stated = (folder / DECISION_FILE).read_text(encoding="utf-8").strip()
    must(stated == text, f"{DECISION_FILE} states: {stated} The runs give: {text}")
    return text


def published(path: Path, chain: list[str], wanted: str) -> Check:
    """Checks that a published hash is in ``chain``, those of a ledger, study or submission."""
    at = chain.index(wanted) + 1 if wanted in chain else 0
    text = f"line {at} of {path.name} has it" if at else f"no line of {path.name} has {wanted}"
    return Check("published hash", bool(at), text)
