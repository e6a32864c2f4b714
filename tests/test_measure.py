"""tfasr-measure, the wheel without training, as its users have it.

``make test-measure`` runs this file where that wheel alone is installed. Elsewhere the
wheel is built into a folder, and the packages that it must not need can't be imported.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfasr.errors import is_measure_only

ROOT = Path(__file__).parents[1]
MOST_BYTES = 300e6
# What a full installation has and tfasr-measure must not need.
ABSENT = "tensorflow keras soundfile soxr h5py absl grpc cryptography pandas vl_convert"
BLOCK = """
import os, sys

class Absent:
    names = os.environ["ABSENT"].split()

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
LOOP = """
import tfasr

model = __import__("torch").nn.Linear(80, 29) if {torch} else (lambda batch: batch)
with tfasr.Recorder("runs/mine", targets=["wer=0.2"], target_window=1) as run:
    for heard in ("one too", "one two"):
        run.epoch()
        for _ in range(4):
            with run.step(utterances=8) as step:
                step.loss = 1.5
        with run.evaluation() as evaluation:
            evaluation.score(["one two"] * 3, [heard] * 3)
"""
NAMES = """
import json, tfasr

found = {}
for name in tfasr.__all__:
    try:
        getattr(tfasr, name)
        found[name] = ""
    except ImportError as error:
        found[name] = str(error)

print(json.dumps(found))
"""
PROMISED = {
    "Alphabet",
    "Comparison",
    "ErrorCounts",
    "HardwareConfig",
    "Ledger",
    "Metric",
    "Recorder",
    "Run",
    "RunError",
    "UsageError",
    "compare",
    "count_errors",
    "load_plugin",
    "load_run",
    "read_events",
    "report",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The variables of a process that has tfasr-measure and nothing of the rest."""
    if is_measure_only():
        return dict(os.environ)

    folder = tmp_path_factory.mktemp("measure")
    source = folder / "source"
    source.mkdir()
    for name in ("LICENSE", "gin", "measure", "tfasr"):
        # A copy, as setuptools writes next to what it builds.
        subprocess.run(["cp", "-r", str(ROOT / name), str(source / name)], check=True)

    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run(
        [*pip, str(source / "measure")], check=True, capture_output=True, text=True
    )
    (site / "sitecustomize.py").write_text(BLOCK)
    return os.environ | {"PYTHONPATH": str(site), "ABSENT": ABSENT}


@pytest.fixture(scope="module")
def python(environment, tmp_path_factory):
    """Runs Python, with warnings as errors, in a folder that holds the run of `LOOP`."""
    folder = tmp_path_factory.mktemp("project")

    def call(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", *words],
            cwd=folder,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    call.folder = folder
    recorded = call("-c", LOOP.format(torch=_has_torch()))
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stderr == ""
    return call


def _has_torch() -> bool:
    try:
        importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture
def tfasr(python):
    def call(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "tfasr", *words, **variables)

    return call


def test_a_loop_is_recorded_and_reported(python, tfasr):
    done = tfasr("report", "runs/mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert "WER 20 %" in done.stdout


def test_a_page_with_figures_needs_one_more_package(python, tfasr):
    words = ("report", "runs/mine", "--out", "report")
    done = tfasr(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "tfasr report: Drawing figures needs vl-convert-python, which is not installed: "
        "pip install 'tfasr-measure[figures]'.\n"
    )
    if is_measure_only():
        return

    done = tfasr(*words, ABSENT=ABSENT.replace("vl_convert", ""))
    assert done.returncode == 0, done.stderr
    page = python.folder / "report" / "report.html"
    assert page.stat().st_size > 10_000
    assert (page.parent / "wer.png").is_file()


def test_runs_are_compared_watched_and_verified(python, tfasr):
    watched = tfasr("watch", "runs", "--once")
    assert (watched.returncode, watched.stderr) == (0, "")
    assert "mine" in watched.stdout

    verified = tfasr("verify", "runs/mine")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "mine, chain" in verified.stdout

    ledger = python.folder / "runs" / "mine" / "events.jsonl"
    forged = python.folder / "forged"
    forged.mkdir(exist_ok=True)
    text = ledger.read_text().replace('"utterances":8', '"utterances":9', 1)
    (forged / "events.jsonl").write_text(text)
    assert tfasr("verify", "forged").returncode == 1


def test_the_machine_is_described(tfasr):
    done = tfasr("doctor", "--out", "system.json")
    assert done.returncode == 0, done.stderr
    assert "not part of tfasr-measure" in done.stdout
    assert "Install tfasr again" not in done.stdout
    priced = tfasr(
        "report", "runs/mine", "--hardware", "system.json", "--price_usd_per_hour", "2"
    )
    assert priced.returncode == 0, priced.stderr
    assert "USD" in priced.stdout
    known = tfasr("report", "runs/mine", "--hardware", "paper_sys1")
    assert known.returncode == 0, known.stderr


def test_help_lists_what_works(tfasr):
    done = tfasr("--help")
    assert done.returncode == 0
    listed = re.findall(r"^    (\w+)  ", done.stdout, re.MULTILINE)
    assert listed == ["watch", "report", "doctor", "verify"]
    assert "pip install tfasr" in done.stdout
    for command in listed:
        assert tfasr("help", command).returncode == 0


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["train", "--run_dir", "new"], "pip install tfasr."),
        (["help", "transcribe"], "pip install tfasr."),
        (["doctor", "--measure"], "pip install tfasr."),
        (["doctor", "--gin_file", "fast/an4"], "pip install tfasr."),
        (["report", "runs/mine", "--catalogue", "new"], "pip install tfasr."),
        (["verify", "study"], "pip install tfasr."),
        (["report", "--flagfile", "f"], "pip install 'tfasr-measure[flagfile]'."),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_needs_more_says_in_a_sentence_what_to_install(
    python, tfasr, words, remedy
):
    (python.folder / "study").mkdir(exist_ok=True)
    (python.folder / "study" / "starts.jsonl").touch()
    done = tfasr(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"{remedy}\n")


def test_each_public_name_is_there_or_says_what_to_install(python):
    done = python("-c", NAMES)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name for name, problem in found.items() if not problem} >= PROMISED
    assert {"train", "evaluate", "AcousticModel"} <= found.keys() - PROMISED
    for name, problem in found.items():
        if problem:
            assert problem == (
                f"tfasr.{name} needs more than tfasr-measure: pip install tfasr."
            )


def test_an_installation_is_small():
    """Counts the files of tfasr-measure's dependencies, and of theirs."""
    seen = set()
    waiting = ["numpy", "scipy", "gin-config", "jiwer", "orjson", "psutil", "regex"]
    waiting.append("rich")
    size = 0
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        package = importlib.metadata.distribution(name)
        size += sum(
            Path(package.locate_file(file)).stat().st_size
            for file in package.files
            if Path(package.locate_file(file)).is_file()
        )
        for requirement in package.requires or ():
            if ";" not in requirement:
                waiting.append(re.match(r"[\w.-]+", requirement)[0].lower())

    assert {"rapidfuzz", "pygments"} <= seen
    assert size < MOST_BYTES
