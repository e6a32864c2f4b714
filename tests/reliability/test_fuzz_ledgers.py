"""Forged and damaged run folders through ``tfasr report``: left out and named, or read; no more."""

import copy
import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reliability.fuzzing import bounded, damaged, values
from tests.reports.conftest import COMPARABLE, ledger_of
from tfasr.display.vega import page_legend, page_panels, picture_spec
from tfasr.reports.write import report

FACTS = {
    "hardware": {"name": "x", "price_usd_per_hour": 1.5, "gpu": "n/a", "power_w": 100.0},
    "comparability": COMPARABLE | {"decoder": {"name": "beam", "beam_width": 4}},
    "num_replicas": 2,
    "train_samples": 96,
    "opt_name": "Adam",
    "opt_base_learning_rate": 0.1,
    "shards": {"train": "0" * 64},
    "shared_with_training": {"utterances": 1, "of_utterances": 8, "speakers": 0, "of_speakers": 2},
    "missing_compiled_parts": ["recurrent layers"],
    "instruction_set": {"name": "avx2", "forced": True},
    "traces": {"training": {"traces": 1, "shapes": 1}, "evaluation": {"traces": 1}},
    "decode_work": 0.25,
}


def full_ledger():
    """A run with every kind of event, resumed once."""
    ledger = ledger_of([0.5, 0.4, 0.1])
    ledger.events.pop()
    ledger.checkpoint(0.5).resume(down_s=5, from_step=ledger.step_number, alive_s=1, init_s=1)
    for key, value in FACTS.items():
        ledger.event(key, value)
    for epoch in (4, 5):
        ledger.epoch(epoch, 0.1, steps=12)
    return ledger.end()


def beside(ledger):
    """What may lie beside a ledger, as a run writes it."""
    first = ledger.events[0]
    times = [(first["time_ms"] + 500 * n, first["metadata"]["mono_s"] + n / 2) for n in range(60)]
    cpu = "time_ms,cpu_percent,process_percent\n" + "".join(f"{t},50,40\n" for t, _ in times)
    gpu = "time_ms,gpu,utilisation_percent,memory_used_bytes,power_w\n"
    gpu += "".join(f"{t},0,90,1000,250\n" for t, _ in times)
    energy = "time_ms,session,mono_s,counter,joules,range_joules\n"
    energy += "".join(f"{t},0,{m},gpu0,{100 * n},\n" for n, (t, m) in enumerate(times))
    system = {"system": {"processor": "x", "packages": {"keras": "3"}, "gpus": ["y"]}}
    return {
        "cpu.csv": cpu.encode(),
        "gpu.csv": gpu.encode(),
        "energy.csv": energy.encode(),
        "config.gin": b"TrainingConfig.seed = 1\n",
        "operative_config.gin": b"TrainingConfig.seed = 1\n",
        "run.json": json.dumps(system).encode(),
        "experiment.json": b'{"training": {"seed": 1}}',
    }


LEDGER = full_ledger()
LINES = "".join(json.dumps(event) + "\n" for event in LEDGER.events).encode()
FILES = {"events.jsonl": LINES, **beside(LEDGER)}


def places(value):
    """Every dictionary within a JSON value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict) and value else []
    return [*own, *(place for one in inner for place in places(one))]


@st.composite
def forged(draw) -> bytes:
    """A ledger of which some fields hold something else, or events are gone or doubled."""
    events = copy.deepcopy(LEDGER.events)
    for _ in range(draw(st.integers(1, 4))):
        event = draw(st.sampled_from(events))
        kind = draw(st.sampled_from(["change", "change", "remove", "double", "add"]))
        place = draw(st.sampled_from(places(event)))
        name = draw(st.sampled_from(sorted(place, key=str)))
        if kind == "change":
            place[name] = draw(values)
        elif kind == "remove":
            del place[name]
        elif kind == "add":
            place[draw(st.text(max_size=3))] = draw(values)
        else:
            events.insert(draw(st.integers(0, len(events))), copy.deepcopy(event))
    return "".join(json.dumps(event) + "\n" for event in events).encode()


@st.composite
def bad_runs(draw) -> dict[str, bytes]:
    """One or two of a run's files that are not as they were written."""
    files = {}
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(["forged", "events.jsonl", *sorted(FILES)]))
        if name == "forged":
            files["events.jsonl"] = draw(forged())
        else:
            files[name] = draw(damaged(FILES[name]))
    return files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one good run, to which each example adds a bad one."""
    path = tmp_path_factory.mktemp("forged") / "runs"
    ledger_of([0.5, 0.1, 0.1]).write(path / "good")
    return path


def put(folder, files):
    bad = folder / "bad"
    shutil.rmtree(bad, ignore_errors=True)
    bad.mkdir()
    for name, content in (FILES | files).items():
        (bad / name).write_bytes(content)
    return bad


@pytest.fixture(scope="module")
def drawing(tmp_path_factory):
    """Describes every figure in full, and leaves out turning it into a picture."""
    with pytest.MonkeyPatch.context() as patch:

        def described(chart, folder):
            json.dumps([picture_spec(chart), page_legend(chart), page_panels(chart.panels)])
            return "<svg></svg>"

        patch.setattr("tfasr.reports.page.write_chart", described)
        yield


def judge(text, bad):
    assert "runs/good" in text
    left_out = f"{bad} is left out. " in " ".join(text.split())
    assert left_out or "runs/bad " in text


@bounded(40)
@given(bad_runs())
def test_a_bad_run_in_a_folder_is_read_or_left_out_by_name(folder, files):
    bad = put(folder, files)
    judge(report([folder], policy="paper", power=True), bad)


@bounded(8)
@given(bad_runs())
def test_the_page_of_a_bad_run_beside_a_good_one(folder, drawing, files):
    bad = put(folder, files)
    judge(report([folder], out=folder.parent / "out"), bad)
