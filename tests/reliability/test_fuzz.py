"""Forged and damaged run folders through ``tfasr report``: left out and named, or read; no more."""

import contextlib
import copy
import io
import json
import shutil

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from tests.data.made_corpus import make_utterances, noise, write_tsv
from tests.reliability.fuzzing import bounded, damaged, places, values
from tests.reports.conftest import COMPARABLE, ledger_of
from tfasr import cli
from tfasr.corpora.manifests import read_json_manifest, read_tsv
from tfasr.data.audio import audio_duration_s, read_audio
from tfasr.display.vega import page_legend, page_panels, picture_spec
from tfasr.errors import UsageError
from tfasr.reports.write import report
from tfasr.tta.published import READERS
from tfasr.tta.run import load_run

FACTS = {
    "hardware": {
        "name": "x",
        "price_usd_per_hour": 1.5,
        "gpu": "n/a",
        "power_w": 100.0,
    },
    "comparability": COMPARABLE | {"decoder": {"name": "beam", "beam_width": 4}},
    "num_replicas": 2,
    "train_samples": 96,
    "opt_name": "Adam",
    "opt_base_learning_rate": 0.1,
    "shards": {"train": "0" * 64},
    "shared_with_training": {
        "utterances": 1,
        "of_utterances": 8,
        "speakers": 0,
        "of_speakers": 2,
    },
    "missing_compiled_parts": ["recurrent layers"],
    "instruction_set": {"name": "avx2", "forced": True},
    "traces": {"training": {"traces": 1, "shapes": 1}, "evaluation": {"traces": 1}},
    "decode_work": 0.25,
    "start_from": {
        "run": "x",
        "file": "best.npz",
        "sha256": "0" * 64,
        "ledger_hash": None,
        "seconds": 60.5,
        "joules": 10.0,
        "layers": ["conv"],
        "new_layers": ["dense"],
    },
    "cluster": {
        "workers": 2,
        "gradient_bytes": 1000,
        "gradient_exchange": "float32",
        "link": {"bytes_per_s": 1e6, "small_s": 0.001},
    },
    "exchanged": {
        "utterances": 8,
        "lost_utterances": 0,
        "waited_s": 0.5,
        "waited_for": 1,
        "workers": [
            {"rank": 1, "utterances": 8, "staleness": 0, "train_s": 1.5, "link_s": 0.1},
        ],
    },
    "worker_left": {"rank": 1, "why": "it ended"},
    "evaluation_placement": {"name": "shared", "devices": []},
    "given_up": {
        "budget_s": 60.0,
        "metric": "cer",
        "target": 0.1,
        "not_before_s": None,
    },
}


def full_ledger():
    """A run with every kind of event, resumed once."""
    ledger = ledger_of([0.5, 0.4, 0.1])
    ledger.events.pop()
    ledger.checkpoint(0.5).resume(
        down_s=5, from_step=ledger.step_number, alive_s=1, init_s=1
    )
    for key, value in FACTS.items():
        ledger.event(key, value)
    for epoch in (4, 5):
        ledger.epoch(epoch, 0.1, steps=12)
    return ledger.end()


def beside(ledger):
    """What may lie beside a ledger, as a run writes it."""
    first = ledger.events[0]
    times = [
        (first["time_ms"] + 500 * n, first["metadata"]["mono_s"] + n / 2)
        for n in range(60)
    ]
    cpu = "time_ms,cpu_percent,process_percent\n" + "".join(
        f"{t},50,40\n" for t, _ in times
    )
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


ODD = {
    "start_from": (
        [1],
        "x",
        {"seconds": "x"},
        {"seconds": [1]},
        {"layers": 5},
        {"joules": {}},
    ),
    "exchanged": (5, {"workers": 5}, {"workers": [5]}, {"workers": [{"rank": "x"}]}),
    "worker_left": ([], {"rank": [1]}, {}),
}


@pytest.mark.parametrize(("key", "value"), [(key, v) for key in ODD for v in ODD[key]])
def test_a_fact_of_another_type_is_named_with_its_line(tmp_path, key, value):
    ledger = ledger_of([0.5, 0.1])
    ledger.event(key, value)
    (tmp_path / "events.jsonl").write_text(
        "".join(json.dumps(e) + "\n" for e in ledger.events)
    )
    with pytest.raises(
        UsageError, match=f"In line .*events.jsonl the value of {key} must be"
    ):
        report([tmp_path])


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
            json.dumps(
                [picture_spec(chart), page_legend(chart), page_panels(chart.panels)]
            )
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


@bounded(20)
@given(bad_runs(), st.sampled_from([["watch", "--once"], ["verify"]]))
def test_a_bad_run_is_watched_and_verified_without_a_traceback(folder, files, command):
    bad = put(folder, files)
    output = io.StringIO()
    errors = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = cli.run(cli.parse(["tfasr", *command, str(bad)]))
    text = output.getvalue() + errors.getvalue()
    assert status in (0, 1, 2)
    assert "Traceback" not in text
    assert text.strip()


@bounded(8)
@given(bad_runs())
def test_the_page_of_a_bad_run_beside_a_good_one(folder, drawing, files):
    bad = put(folder, files)
    judge(report([folder], out=folder.parent / "out"), bad)


# Damaged lists of utterances and audio files: judged line by line and file by file.

FORMATS = [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
           ("OGG", "OPUS"), ("AIFF", "PCM_16"), ("MP3", "MPEG_LAYER_III")]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    utterances = make_utterances(folder, 3)
    write_tsv(folder, utterances)
    lines = [{"audio_filepath": u.audio_path.name, "text": u.text, "duration": 0.3, "speaker": 1}
             for u in utterances]  # fmt: skip
    (folder / "train.json").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    return folder


def judged(read, path, folder, content):
    path.write_bytes(content)
    try:
        found = read(path, folder)
    except UsageError as error:
        assert str(path) in str(error)  # noqa: PT017 - either is right
        return

    assert found.utterances or found.rejections
    for rejection in found.rejections:
        assert path.name in f"{rejection.id} {rejection.detail}"


@bounded(40)
@given(st.data())
def test_a_damaged_tab_separated_list(corpus, data):
    content = (corpus / "train.tsv").read_bytes()
    judged(read_tsv, corpus / "bad.tsv", corpus, data.draw(damaged(content)))


@bounded(40)
@given(st.data())
def test_a_damaged_json_manifest(corpus, data):
    content = (corpus / "train.json").read_bytes()
    judged(read_json_manifest, corpus / "bad.json", corpus, data.draw(damaged(content)))


@bounded(30)
@given(st.lists(st.dictionaries(st.sampled_from(
    ["audio_filepath", "text", "duration", "offset", "speaker", "id"]), values), min_size=1,
    max_size=4))  # fmt: skip
def test_a_json_manifest_of_any_values(corpus, lines):
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    judged(read_json_manifest, corpus / "bad.json", corpus, content)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sounds")
    written = {}
    for form, kind in FORMATS:
        if soundfile.check_format(form, kind):
            written[form, kind] = folder / f"{form}-{kind}.{form.lower()}"
            soundfile.write(written[form, kind], noise(0.1), 16000, kind, format=form)

    return written


@bounded(40)
@given(st.data())
def test_a_damaged_audio_file_is_heard_or_refused_by_name(sounds, data):
    path = sounds[data.draw(st.sampled_from(sorted(sounds)))]
    content = path.read_bytes()
    # Headers are what lies, and they are small.
    head = data.draw(damaged(content[:200]) | damaged(content))
    bad = path.parent / f"bad{path.suffix}"
    bad.write_bytes(head + (content[200:] if len(head) <= 400 else b""))
    try:
        assert audio_duration_s(bad) >= 0
        samples = read_audio(bad)
    except ValueError as error:
        assert str(bad) in str(error)  # noqa: PT017 - either is right
        return

    assert samples.dtype == np.float32
    assert np.isfinite(samples).all()


# Damaged logs of other benchmarks through ``tfasr report``: one error that names the
# file.

NAMES = {
    "mlperf": "result_0.txt",
    "algoperf": "eval_measurements.csv",
    "dawnbench": "entry.tsv",
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """One run, written as each benchmark's log; a folder for the damaged ones."""
    folder = tmp_path_factory.mktemp("logs")
    run = load_run(ledger_of([0.5, 0.4, 0.1, 0.1]).write(folder / "run"))
    for name, file in NAMES.items():
        (folder / name).mkdir()
        READERS[name].write(run, folder / name / file)

    return folder


def read_or_refused(path):
    try:
        assert report([path], targets=["wer=0.5"], policy="mlperf")
    except UsageError as error:
        assert str(path) in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("name", sorted(NAMES))
@bounded(12)
@given(data=st.data())
def test_a_damaged_log_is_read_or_refused_by_name(logs, name, data):
    content = (logs / name / NAMES[name]).read_bytes()
    bad = logs / "bad" / NAMES[name]
    bad.parent.mkdir(exist_ok=True)
    bad.write_bytes(data.draw(damaged(content)))
    if name == "dawnbench":
        described = (logs / name / "entry.json").read_bytes()
        bad.with_suffix(".json").write_bytes(
            data.draw(st.just(described) | damaged(described))
        )

    read_or_refused(bad)
