import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfasr.commands import doctor as doctor_command
from tfasr.errors import RunError, UsageError
from tfasr.training.memory import BufferNeed
from tfasr.tta.costs import load_hardware


@pytest.fixture
def doctor(tmp_path):
    """Runs `tfasr doctor` where importing TensorFlow fails."""
    (tmp_path / "broken" / "tensorflow").mkdir(parents=True)
    (tmp_path / "broken" / "tensorflow" / "__init__.py").write_text(
        "raise RuntimeError('this TensorFlow is broken')\n"
    )

    def run(*arguments):
        paths = [str(tmp_path / "broken"), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
        return subprocess.run(
            [sys.executable, "-m", "tfasr.cli", "doctor", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_it_answers_without_tensorflow(doctor):
    finished = doctor()
    assert finished.returncode == 0, finished.stderr
    for name in ("processor", "memory", "limits", "energy, processors", "Python", "tensorflow"):
        assert any(line.startswith(name) for line in finished.stdout.splitlines()), name
    assert "broken" not in finished.stdout


def test_a_tensorflow_that_does_not_load_is_told_when_asked(doctor):
    finished = doctor("--tensorflow")
    assert finished.returncode == 0, finished.stderr
    assert "TensorFlow does not load: RuntimeError: this TensorFlow is broken" in finished.stdout


def test_its_json_is_a_machine_for_the_report(doctor, tmp_path):
    finished = doctor(
        *("--format", "json", "--system_name", "desk", "--submitter", "me"),
        *("--out", str(tmp_path / "system.json")),
    )
    assert finished.returncode == 0, finished.stderr
    said = json.loads(finished.stdout)
    assert said == json.loads((tmp_path / "system.json").read_text())
    assert (said["system_name"], said["submitter"]) == ("desk", "me")
    machine = load_hardware(tmp_path / "system.json")
    assert (machine.name, machine.num_hosts, machine.hourly_usd) == ("desk", 1, None)


def test_a_description_without_a_name_takes_its_files(doctor, tmp_path):
    assert doctor("--out", str(tmp_path / "system.json")).returncode == 0
    assert load_hardware(tmp_path / "system.json").name == "system"


def test_a_folder_that_is_not_there_fails_with_a_remedy(doctor, tmp_path):
    finished = doctor("--out", str(tmp_path / "nowhere" / "system.json"))
    assert finished.returncode == 1
    assert "Choose another --out" in finished.stderr
    with pytest.raises(UsageError, match="Presets"):
        load_hardware(tmp_path / "nowhere" / "system.json")


def test_it_says_whether_a_presets_buffer_fits(monkeypatch, capsys):
    asked = []

    def call(function, *arguments, **options):
        asked.append((function.__name__, *arguments))
        return BufferNeed(100, 300, 1670, 93)

    monkeypatch.setattr(doctor_command, "call", call)
    arguments = argparse.Namespace(
        tensorflow=False, out=None, system_name="", submitter="", format="table",
        gin_file=["paper_sys10.gin"], gin_binding=[],
    )  # fmt: skip
    monkeypatch.setattr(doctor_command, "available_bytes", lambda: 64 * 2**30)
    assert doctor_command.run(arguments) == 0
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("buffer")]
    assert "100 batches held ready" in line
    assert "17.70 GiB" in line
    assert "64.00 GiB are available" in line
    monkeypatch.setattr(doctor_command, "available_bytes", lambda: 8 * 2**30)
    with pytest.raises(RunError, match=r"must fit into 8.00 GiB.*PipelineConfig.prefetch = 34"):
        doctor_command.run(arguments)
    assert "17.70 GiB" in capsys.readouterr().out
    assert asked == 2 * [("buffer_of_preset", ["paper_sys10.gin"], [])]
