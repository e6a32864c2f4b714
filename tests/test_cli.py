"""The command line: exit codes, streams, help."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import absl.logging
import pytest

import tfasr
from tests.reports.conftest import ledger_of
from tfasr import api, commands
from tfasr.cli import (
    COMMANDS,
    command_examples,
    command_module,
    make_parser,
    parse,
    run,
)

# What `import tfasr` shows, to programs and to type checkers.

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


def test_importing_tfasr_installs_no_hooks_and_tensorflow_loads_quietly():
    script = (
        "import sys\nfinders = list(sys.meta_path)\nimport tfasr\nassert sys.meta_path == finders\n"
        "assert 'tensorflow' not in sys.modules\ntfasr.TrainingConfig\n"
        "assert 'tensorflow' in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


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
    found = re.findall(
        r"^(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE
    )
    expected = [
        ("bad.py", str(number), re.search(r"([\w-]+)$", line)[1])
        for number, line in enumerate(BAD.splitlines()[1:], start=2)
    ]
    assert found == expected, done.stdout + done.stderr


def run_tfasr(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tfasr.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_command_is_a_file_of_its_name():
    files = {path.stem for path in Path(commands.__path__[0]).glob("*.py")}
    assert files - {"early", "shared", "targets"} == set(COMMANDS)


def test_help_names_every_command():
    finished = run_tfasr("--help")
    assert finished.returncode == 0
    assert all(name in finished.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    "example",
    [
        example
        for name in COMMANDS
        for example in command_examples(command_module(name)).values()
    ],
)
def test_the_example_of_each_help_text_is_accepted(example):
    words = shlex.split(example.partition(">")[0])
    assert make_parser(words).parse_args(words).command == words[0]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command):
    finished = run_tfasr(command, "--help")
    assert finished.returncode == 0
    assert "usage: tfasr" in finished.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["dance"],
        ["prepare", "--corpus", "tsv"],
        [
            "prepare",
            "--corpus",
            "tsv",
            "--corpus_dir",
            "/nowhere",
            "--shard_dir",
            "/tmp/nowhere",
        ],
        ["train", "--shard_dir", "/nowhere", "--run_dir", "/nowhere/run"],
        ["evaluate", "--run_dir", "/nowhere", "--split", "test"],
        ["report", "/nowhere"],
    ],
)
def test_wrong_use_exits_with_2_and_a_message(arguments):
    finished = run_tfasr(*arguments)
    assert finished.returncode == 2
    assert finished.stderr.strip()
    assert "Traceback" not in finished.stderr


def test_without_a_command_the_list_of_them_is_shown():
    finished = run_tfasr()
    assert finished.returncode == 2
    assert all(name in finished.stderr for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "Did you mean train instead of trian?"),
        (
            ["report", "runs", "--fromat", "json"],
            "--fromat json. Did you mean --format instead",
        ),
        (
            ["prepare", "--shard-dir=x"],
            "--corpus_dir, --shard_dir. Did you mean --shard_dir",
        ),
        (["report", "--form", "nothing"], "'csv', 'json', 'card', 'card_json')\n"),
    ],
)
def test_a_misspelt_word_is_told_beside_the_commands_own_usage(arguments, said):
    finished = run_tfasr(*arguments)
    assert finished.returncode == 2
    assert said in finished.stderr
    command = arguments[0] if arguments[0] in COMMANDS else "["
    assert finished.stderr.startswith(f"usage: tfasr {command}")


def tfasr_command(*words: str, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tfasr", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_flag_file_stands_for_the_flags_in_it(tmp_path, monkeypatch):
    """Comments, blank lines, spaces in values and files in files, as absl reads them."""
    (tmp_path / "more.flags").write_text("--seed=7\n")
    (tmp_path / "my.flags").write_text(
        "# how we train\n\n--gin_file=fast/an4.gin\n--flagfile=more.flags\n"
        "--gin_binding=TrainingConfig.epochs = 3\n--resume\n"
    )
    given = [
        "tfasr",
        "train",
        f"--flagfile={tmp_path / 'my.flags'}",
        "--shard_dir",
        "s",
    ]
    monkeypatch.chdir(tmp_path)
    arguments = parse(
        [*given, "--run_dir", "r", "--gin_binding", "TrainingConfig.epochs = 4"]
    )
    assert arguments.gin_file == ["fast/an4.gin"]
    assert arguments.gin_binding == [
        "TrainingConfig.seed = 7", "TrainingConfig.epochs = 3", "TrainingConfig.epochs = 4",
    ]  # fmt: skip
    assert arguments.resume
    assert not hasattr(arguments, "flagfile")


def test_a_command_may_stand_in_a_flag_file(tmp_path):
    (tmp_path / "all.flags").write_text("presets\n--quiet\n")
    done = tfasr_command("--flagfile", "all.flags", folder=tmp_path)
    assert done.returncode == 0
    assert "fast/an4.gin" in done.stdout


@pytest.mark.parametrize(
    ("words", "content"),
    [
        (["--flagfile", "missing.flags"], None),
        (["--flagfile"], None),
        (["--flagfile=f"], b"--gin_file=\xff\xfe\n"),
        (["--flagfile=f"], b"--flagfile=gone\n"),
        (["--flagfile=."], None),
    ],
)
def test_a_flag_file_that_cannot_be_read_is_wrong_use(tmp_path, words, content):
    if content is not None:
        (tmp_path / "f").write_bytes(content)
    done = tfasr_command("train", *words, folder=tmp_path)
    assert done.returncode == 2
    assert "--flagfile must be a text file" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_wrong_flag_in_a_flag_file_is_named(tmp_path):
    (tmp_path / "f").write_text("--gin_fil=an4.gin\n--shard_dirr=x\n")
    done = tfasr_command("train", "--flagfile=f", folder=tmp_path)
    assert done.returncode == 2
    assert "--shard_dirr" in done.stderr


def test_messages_of_tfasr_and_absl_have_no_prefix(capsys):
    """Standard output stays for results."""
    before = logging.getLogger().handlers[:]
    try:
        assert run(parse(["tfasr", "presets"])) == 0
        assert len(logging.getLogger().handlers) == 1
        capsys.readouterr()
        logging.getLogger("tfasr").info("epoch 1")
        absl.logging.warning("odd")
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", "epoch 1\nodd\n")
    finally:
        logging.getLogger().handlers[:] = before


def test_failed_work_exits_with_1(tmp_path):
    (tmp_path / "train.tsv").write_text(
        "path\tspeaker\tseconds\ttext\nmissing.wav\tnobody\t1.0\tyes\n"
    )
    finished = run_tfasr(
        *(
            "prepare",
            "--corpus",
            "tsv",
            "--corpus_dir",
            str(tmp_path),
            "--split",
            "train",
        ),
        *("--manifest", "train.tsv", "--shard_dir", str(tmp_path / "shards")),
    )
    assert finished.returncode == 1
    assert "transcript without audio" in finished.stderr
    assert finished.stdout == ""


# What works where TensorFlow is not installed, in a process that cannot import it.

DOCUMENT = Path(__file__).parents[1] / "docs" / "light_install.md"

# Everything a full install has beside the documented packages is absent here.
LIGHT = """
import contextlib, io, json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras", "absl", "h5py", "torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import numpy as np
import tfasr
from tfasr import cli
from tfasr.decoding.choice import DECODERS, DecoderConfig, make_decoder

found = {"there": [], "lacking": {}}
for name in tfasr.__all__:
    try:
        getattr(tfasr, name)
        found["there"].append(name)
    except ImportError as error:
        found["lacking"][name] = str(error)
try:
    tfasr.compute_features(np.zeros(1600, np.float32), tfasr.FeatureConfig())
except ImportError as error:
    found["lacking"]["compute_features"] = str(error)

with tfasr.Recorder("run", targets=["cer=0.5"], target_window=1) as run:
    run.epoch()
    with run.step(utterances=1):
        pass
    with run.evaluation() as e:
        e.score(["one two"], ["one too"])

def command(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.run(cli.parse(["tfasr", *words]))
    return [status, out.getvalue(), err.getvalue()]

found["report"] = command("report", "run", "--out", "out")
found["doctor"] = command("doctor")
found["train"] = command("train", "--shard_dir", "shards", "--run_dir", "new")
found["evaluate"] = command("evaluate", "--run_dir", "run", "--split", "test")
found["wer"] = tfasr.count_errors(["one two"], ["one too"]).wer

alphabet = tfasr.Alphabet()
log_probs = np.full((1, 2, alphabet.num_classes), -9.0, np.float32)
log_probs[0, 0, alphabet.encode("a")[0]] = log_probs[0, 1, alphabet.blank_id] = -0.1
for name in DECODERS:
    try:
        decoder = make_decoder(DecoderConfig(name=name), alphabet, ["a", "b"])
        (hypothesis,) = decoder.decode(log_probs, np.array([2]))
        found[name] = hypothesis.text
    except ImportError as error:
        found[name] = str(error)
json.dump(found, open("found.json", "w"))
"""


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """What a process without TensorFlow could do."""
    folder = tmp_path_factory.mktemp("light")
    done = subprocess.run(
        [sys.executable, "-c", LIGHT],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "found.json").read_text())


def test_what_is_promised_is_there(light):
    _, found = light
    promised = {
        *(
            "Alphabet",
            "Comparison",
            "DecoderConfig",
            "ErrorCounts",
            "Hypothesis",
            "Ledger",
        ),
        *(
            "Metric",
            "Recorder",
            "Run",
            "RunError",
            "UsageError",
            "WordBeamSearch",
            "compare",
        ),
        *("count_errors", "load_plugin", "load_run", "read_events", "report"),
    }
    assert promised <= set(found["there"])


def test_what_is_not_names_the_package_and_the_remedy(light):
    _, found = light
    assert {"train", "evaluate", "AcousticModel", "compute_features"} <= set(
        found["lacking"]
    )
    for name, said in found["lacking"].items():
        assert said.startswith(f"tfasr.{name} needs ")
        assert "pip install tfasr" in said

    for command in ("train", "evaluate"):
        status, out, err = found[command]
        assert (status, out) == (2, "")
        assert (
            f"tfasr {command}: the command needs tensorflow, which is not installed"
            in err
        )

    assert "The decoder 'beam' needs tensorflow" in found["beam"]


def test_recorder_report_doctor_scoring_and_decoding_work(light):
    folder, found = light
    assert found["report"][0] == 0
    assert "CER 50 %" in found["report"][1]
    assert (folder / "out" / "report.html").stat().st_size > 10_000
    assert (folder / "out" / "cer.png").is_file()
    assert found["doctor"][0] == 0
    assert found["wer"] == 0.5
    assert (found["greedy"], found["word_beam"]) == ("a", "a")


def test_the_documented_list_is_what_setup_cfg_asks_for_less_what_needs_tensorflow():
    """Nobody adds a dependency and forgets those who install by hand."""
    import configparser
    import re

    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[1] / "setup.cfg")
    required = {
        re.split("[<>=]", line)[0]
        for line in config["options"]["install_requires"].split()
    }
    (documented,) = re.findall(
        r"^pip install (numpy .*)$", DOCUMENT.read_text(), re.MULTILINE
    )
    unneeded = {"tensorflow", "keras", "absl-py", "grpcio", "cryptography"}
    assert required - set(documented.split()) == unneeded
    assert set(documented.split()) - required == {"onnxruntime"}


def test_without_absl_only_flag_files_need_it(tmp_path):
    hidden = (
        "import sys; sys.modules['absl'] = None; import tfasr.cli; tfasr.cli.main()"
    )

    def command(*words):
        return subprocess.run(
            [sys.executable, "-c", hidden, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert command("presets").returncode == 0
    done = command("presets", "--flagfile", "f")
    assert done.returncode == 2
    assert (
        "--flagfile needs absl-py, which is not installed: pip install" in done.stderr
    )
    assert "Traceback" not in done.stderr
