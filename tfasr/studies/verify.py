"""Checks what studies state, by recomputing it from their files.

``tfasr verify`` calls `verify_study`, and prints a line for each `Check`. First `form`
checks that a file has the form that tfasr writes. Then each check compares two things
that a forger would have to change together: a ledger with the study's list of starts
(which another process wrote), with the sealed plan, or with shards. Each run is also
checked by itself, by `tfasr.verifying.run`.

Nothing of what is checked is executed: gin files are read as evidence, and plug-ins are
only hashed. What no check covers is listed in `UNCHECKED_OF_RUNS` and
`UNCHECKED_OF_STUDIES`, and printed as the last line.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tfasr.kit import files
from tfasr.kit.gin import DROPPED, read_evidence
from tfasr.ledger.declared import (
    STARTS_FILE,
    StudyCheck,
    check_study,
    declarations,
    first_try,
)
from tfasr.ledger.events import chain_of, read_events
from tfasr.studies.form import check_plan, check_starts
from tfasr.studies.hosts import unlike
from tfasr.studies.perform import DECISION_FILE, decision, decision_text
from tfasr.studies.plan import PLAN_FILE, Plan, plan_of
from tfasr.studies.quiet import check_quiet
from tfasr.tta.run import Run, load_run
from tfasr.verifying.form import CLOCKS_APART, check_ending, finite, must
from tfasr.verifying.run import Check, Checked, judged, plain_files, verify_plain_run

# Milliseconds by which a run's first event may precede the plan's sealing.
_EARLY_MS = 2000

# A ledger and the study's list note the same moment within 5 s.
_NOTED_S = 5.0

# A host's answer may be as late as this (`agent.LEASE_S`).
_ANSWERED_S = 15.0

# Processes take equally long to end, within 5 s plus 5 % of their duration. Whoever
# shortens a run's clock at its end can gain no more than that.
_ENDING = (5.0, 0.05)

UNCHECKED_OF_STUDIES = (
    "tables, pages and figures of the report, apart from report.json",
    "final scores and beam widths",
    "titles, labels, parts of tables and published results to compare with",
    (
        "the presets and the version of tfasr that the plan names, beyond statements "
        "and code"
    ),
    "the newest lines of starts.jsonl, if they were cut off",
    "what hosts of a cluster say of their machines",
)


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
            yield from verify_plain_run(run_dir, name, shard_dir)
            yield judged(
                f"{name}, as declared", partial(_as_declared, folder, study, run_dir)
            )

        for experiment, seed in study.repeated:
            run_dir = first_try(folder, experiment, seed)
            yield from verify_plain_run(
                run_dir, f"first try of {experiment} seed {seed}", shard_dir
            )

        yield judged("quiet machine", partial(check_quiet, study, folder))
        yield judged("report", partial(_report, plan, folder))
        if plans[-1]["until"]:
            yield judged("decision", partial(_decision, plan, folder))


def _plan(folder: Path, checked: list[StudyCheck]) -> Checked:
    """Checks every sealed plan and the list of starts.

    Whether the declared runs are those that are there is one sentence, which fails the
    check if it names a problem.

    Args:
        folder: the study's.
        checked: gets the study if it can be checked further, since a check itself
            returns only a sentence.
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


def _times(folder: Path, study: StudyCheck) -> Checked:
    """Compares ledgers' clocks with those of the study's list of starts.

    The study's own process wrote the list, so a run whose ledger was changed alone
    would begin, end or note its marks at other times than the list.

    Args:
        folder: the study's.
        study: its plans and runs, as the list of starts has them.
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
            stop = None
            if ends[1] == "end":
                stop = clocks[ends[0]]

            _check_session(name, first, last, clocks[begins], stop)
            if stop is None:
                continue

            passed_s = [
                sides[ends[0]][1] - sides[begins][1] for sides in (clocks, listed)
            ]
            problem = (
                f"{name} took {passed_s[0]:.1f} s on its host, and {passed_s[1]:.1f} s "
                "here"
            )
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

    usual_s = 0.0
    if endings:
        usual_s = sorted(ending[2] for ending in endings)[len(endings) // 2]

    for name, took_s, ending_s in endings:
        allowed_s = usual_s + _ENDING[0] + _ENDING[1] * took_s
        must(
            ending_s <= allowed_s,
            f"{name} ended {ending_s:.1f} s before its process did, others "
            f"{usual_s:.1f} s",
        )

    return f"{len(study.runs)} runs within the times of {STARTS_FILE}"


def _host_clocks(event: dict[str, Any]) -> _Clock:
    """Returns the clocks of the host that trains the run, as the event states them.

    On one machine they are the clocks of the study.
    """
    clock = event["value"].get("clock")
    if clock is None:
        return _clocks_of(event)

    return finite(clock["time_ms"]) / 1000, finite(clock["mono_s"])


def _hosts(folder: Path, plan: Plan) -> Checked:
    """Checks that hosts stayed the machines they were, and are alike if needed.

    They need not be alike if runs are compared in pairs, since both runs of a pair were
    trained on one host.
    """
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

    Args:
        folder: the study's.
        study: its plans and runs.
        events: the lines of its list of starts.
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


def _as_declared(folder: Path, study: StudyCheck, run_dir: Path) -> Checked:
    """Checks that a run has the settings, targets, data and code of its sealed plan.

    Args:
        folder: the study's.
        study: its plans and runs.
        run_dir: the run's folder.
    """
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


def _report(plan: Plan, folder: Path) -> Checked:
    """Makes report.json anew from the ledgers and compares every number with it.

    It returns None, for unchecked, if the study has no report yet.
    """
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


def _decision(plan: Plan, folder: Path) -> Checked:
    """Makes the verdict anew from the ledgers and compares it with decision.txt."""
    text = decision_text(plan, decision(plan, folder))
    stated = files.read_text(folder / DECISION_FILE, "Restore it from a copy.").strip()
    must(stated == text, f"{DECISION_FILE} states: {stated} The runs give: {text}")

    return text
