"""What `import tfasr` shows, to programs and to type checkers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfasr
from tests.reports.conftest import ledger_of
from tfasr import api

GOOD = """
from pathlib import Path

import tfasr

experiment = tfasr.Experiment(
    training=tfasr.TrainingConfig(epochs=3, targets=(("cer", 0.1),)),
    model=tfasr.AcousticModelConfig(lstm_units=32),
)
indexes = tfasr.prepare(corpus="tsv", corpus_dir="corpus", shard_dir=Path("shards"))
history = tfasr.train(experiment, shard_dir="shards", run_dir="run")
rate: float = history[-1]["cer"]
result = tfasr.evaluate(run_dir="run", split="test", decoder="word_beam", beam_width=64)
words: int = result.counts.words
comparison = tfasr.compare(["a", "b"], targets=["cer=0.1"], force=True)
sentences: list[str] = comparison.findings
run: tfasr.Run = tfasr.load_run("run")
text: str = tfasr.report(["run"], out="report", policy="mlperf")
"""

# Each line is wrong in its own way.
BAD = """import tfasr
tfasr.TrainingConfig(epochs="three")  # must be int: arg-type
tfasr.TrainingConfig(epochz=3)  # did you mean epochs: call-arg
tfasr.train("an4.gin", shard_dir="shards", run_dir="run")  # arg-type
tfasr.prepare(corpus=3, corpus_dir="corpus", shard_dir="shards")  # arg-type
tfasr.evaluate(run_dir="run")  # split is missing: call-arg
tfasr.compare(["a"], window="3")  # arg-type
tfasr.load_run(3)  # arg-type
tfasr.no_such_name  # attr-defined
"""


def test_what_type_checkers_see_is_what_programs_get():
    shown = {name for name in vars(api) if not name.startswith("__")} | {"__version__"}
    assert shown == set(tfasr.__all__)
    for name in tfasr.__all__:
        assert getattr(tfasr, name) is getattr(api, name)


def test_report_is_a_function_whatever_of_its_package_was_imported(tmp_path):
    ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "run")
    script = (
        "from tfasr import report\nimport tfasr.reports.page\nimport tfasr\n"
        "assert tfasr.report is report and 'tensorflow' not in tfasr.__dict__\n"
        "print(report([RUN]) == tfasr.report([RUN], output_format='table') != '')"
    )
    run = repr(str(tmp_path / "run"))
    command = [sys.executable, "-c", script.replace("RUN", run)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_an_unknown_name_lists_the_known():
    with pytest.raises(AttributeError, match="no attribute 'trian'.*'train'"):
        _ = tfasr.trian


def test_a_users_script_is_type_checked(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    # An editable install is found by an import hook, which type checkers do not run.
    source = str(Path(tfasr.__file__).parents[1])
    path = {} if "site-packages" in source else {"MYPYPATH": source}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--ignore-missing-imports", "good.py", "bad.py"],
        cwd=tmp_path,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    expected = [
        ("bad.py", str(number), re.search(r"([\w-]+)$", line)[1])
        for number, line in enumerate(BAD.splitlines()[1:], start=2)
    ]
    assert found == expected, done.stdout + done.stderr
