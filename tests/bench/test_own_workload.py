"""A workload in a file outside the package, through the command line."""

import json
import subprocess

import pytest

from tfasr.kit.process import child_environment, module_command

SOURCE = '''
"""Seconds to sort numbers."""

import os

from tfasr.bench.workload import WORKLOADS, Context, Result, Workload
from tfasr.kit.process import call
from tfasr.kit.config import config_class
from tfasr.display.table import Table
from tfasr.errors import RunError


@config_class
class SortingConfig:
    """How many numbers; whether it fails in the end."""

    count: int = 10
    fails: bool = False


def process(config):
    return os.getpid(), config.count, os.environ.get("KERAS_BACKEND")


def here(config: SortingConfig, context: Context):
    rows = []
    for _ in range(2):
        rows.append(list(call(process, config, backend="torch")))
        yield Result([Table("sorted", ["a", "b", "c"], [list(map(str, rows[-1]))])], rows[-1:], 0)
    if config.fails:
        raise RunError("the third failed")


def in_child(config: SortingConfig, context: Context) -> Result:
    return Result([], {"found": list(process(config)), "nothing": float("nan")}, warmup_steps=3)


WORKLOADS.register("sorting", Workload(in_child, (SortingConfig,), backends=("tensorflow",)))
WORKLOADS.register("sorting_here", Workload(here, (SortingConfig,), backends=()))
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sorting.py").write_text(SOURCE)
    # Were it imported, no process would start.
    (tmp_path / "json.py").write_text("raise SystemExit('the working directory ran')\n")
    for name in ("sorting", "sorting_here"):
        text = f"BenchConfig.workload = '{name}'\nSortingConfig.count = 7\n"
        (tmp_path / f"{name}.gin").write_text(text)

    return tmp_path


def bench(folder, *arguments: str) -> subprocess.CompletedProcess:
    command = module_command("tfasr.cli", "bench", "--import", "sorting.py", *arguments)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
        cwd=folder,
    )


def test_it_runs_in_a_process_of_its_own(folder):
    done = bench(folder, "--gin_file", "sorting.gin", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["workload"] == "sorting"
    assert found["configs"] == {"SortingConfig": {"count": 7, "fails": False}}
    assert found["backend"]["name"] == "tensorflow"
    assert found["warmup_steps"] == 3
    assert found["results"]["found"][1:] == [7, "tensorflow"]
    assert found["results"]["nothing"] is None


def test_what_it_measured_before_it_failed_is_kept(folder):
    failing = ("--gin_binding", "SortingConfig.fails = True", "--out", "out")
    done = bench(folder, "--gin_file", "sorting_here.gin", *failing)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the third failed" in done.stderr
    assert "Traceback" not in done.stderr
    kept = json.loads((folder / "out" / "results.json").read_text())
    assert kept["backend"] is None
    assert kept["results"][0][1:] == [7, "torch"]
    assert "| 7 | torch |" in (folder / "out" / "table.md").read_text()


def test_a_backend_that_it_does_not_know_is_refused(folder):
    for name, message in (
        ("sorting", "must be one of tensorflow"),
        ("sorting_here", "left out"),
    ):
        done = bench(folder, "--gin_file", f"{name}.gin", "--backend", "torch")
        assert done.returncode == 2
        assert message in done.stderr
