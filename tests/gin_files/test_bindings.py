"""Bindings on top of a preset, and files that are no gin, through the command line too."""

import logging
import subprocess
import sys

import pytest

from tfasr.errors import UsageError
from tfasr.training.from_gin import load_config
from tfasr.tta.costs import load_hardware


def optimizer_of(config) -> str:
    return type(config.experiment.training.optimizer()).__name__


def test_another_optimizer_on_top_of_a_preset_drops_what_only_the_presets_own_used(caplog):
    caplog.set_level(logging.INFO, "tfasr")
    config = load_config("an4.gin", ["TrainingConfig.optimizer = @Adam", "Adam.beta_1 = 0.8"])
    assert optimizer_of(config) == "Adam"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("Dropped, since later bindings leave them unused: ")
    for name in ("Adadelta.learning_rate", "CosineDecay.initial_learning_rate"):
        assert f"{name} (" in line
    assert line.count("an4.gin:") == 4
    assert "# dropped, since what comes after it leaves it unused: Adadelta" in config.given
    assert "Adadelta" not in config.operative


def test_the_text_that_is_kept_reads_to_the_same_configs(tmp_path, caplog):
    bindings = ["TrainingConfig.optimizer = @Adam", "Adam.beta_1 = 0.8", "TrainingConfig.seed = 7"]
    config = load_config("an4.gin", bindings)
    caplog.clear()
    caplog.set_level(logging.INFO, "tfasr")
    (tmp_path / "config.gin").write_text(config.given)
    again = load_config(str(tmp_path / "config.gin"))
    assert again.operative == config.operative
    assert again.given.strip() == config.given.strip()
    assert not caplog.records


def test_what_an_included_or_an_earlier_file_binds_is_dropped_too(tmp_path):
    own = tmp_path / "own.gin"
    own.write_text("include 'train/paper_states.gin'\nTrainingConfig.optimizer = @SGD\n")
    assert optimizer_of(load_config(str(own))) == "SGD"
    (tmp_path / "later.gin").write_text("TrainingConfig.optimizer = @Adam\n")
    config = load_config([str(own), str(tmp_path / "later.gin")])
    assert optimizer_of(config) == "Adam"
    # What only the sum of a file and its include uses.
    (tmp_path / "rate.gin").write_text("AdamW.learning_rate = 0.5\n")
    own.write_text("include 'rate.gin'\nTrainingConfig.optimizer = @AdamW\n")
    assert optimizer_of(load_config(str(own), ["TrainingConfig.optimizer = @SGD"])) == "SGD"


def test_a_block_is_dropped_whole_or_in_part(tmp_path):
    own = tmp_path / "own.gin"
    own.write_text(
        "TrainingConfig.optimizer = @Adam\nAdam:\n    # why\n    beta_1 = 0.5\n    beta_2 = 0.7\n"
    )
    config = load_config(str(own), ["TrainingConfig.optimizer = @SGD"])
    (tmp_path / "again.gin").write_text(config.given)
    assert optimizer_of(load_config(str(tmp_path / "again.gin"))) == "SGD"


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (
            ["Adam.learning_rate = 1.0"],
            "--gin_binding:1: Adam.learning_rate is bound but",
        ),
        (["TrainingConfig.optimizer = @SGD", "Adadelta.rho = 0.5"], r"--gin_binding:2: Adadelta"),
        (["TrainingConfig.optimizer = @SDG"], "--gin_binding:1: .*SDG"),
        (["TrainingConfig.epochs = 3", "TrainingConfig.epochz = 3"], "--gin_binding:2: .*epochz"),
        (["TrainingConfig.epochs = [1,"], "--gin_binding:1: a bracket"),
        (["TrainingConfig.seed = 100000000000000000000"], r"--gin_binding:1: .*below 2\*\*53"),
        (["import no_such_module_anywhere"], "--gin_binding:1: .*no_such_module_anywhere"),
    ],
)
def test_ones_own_mistakes_are_still_refused(bindings, message):
    with pytest.raises(UsageError, match=message):
        load_config("an4.gin", bindings)


def test_a_presets_own_typo_is_not_taken_for_an_idle_binding(tmp_path):
    (tmp_path / "own.gin").write_text(
        "TrainingConfig.optimizer = @Adam\nAdam.beta_1 = 0.5\nAdamW.beta_1 = 0.5\n"
    )
    with pytest.raises(UsageError, match=r"own\.gin:3: AdamW\.beta_1"):
        load_config(str(tmp_path / "own.gin"), ["TrainingConfig.optimizer = @SGD"])


NO_GIN = [
    (b"TrainingConfig.epochs = [1,\n", ":1: a bracket or a quotation mark is not closed"),
    ("# ok\n# caf\u00e9\n".encode("latin-1"), ":2: a gin file must be text in UTF-8.*0xe9.*UTF-8"),
    (b"\x7fELF\x02\x01\x01\x00\x00\x00\n", ":1: a gin file must be text.*control character"),
    (b"\x89PNG\r\n\x1a\n", ":1: a gin file must be text in UTF-8.*0x89"),
    (b"\n\nimport no_such_module_anywhere\n", ":3"),
]


@pytest.mark.parametrize(("content", "message"), NO_GIN)
@pytest.mark.parametrize("read", [load_config, load_hardware])
def test_what_is_no_gin_file_is_refused_by_file_and_line(tmp_path, content, message, read):
    (tmp_path / "bad.gin").write_bytes(content)
    with pytest.raises(UsageError, match=rf"bad\.gin{message}"):
        read(str(tmp_path / "bad.gin"))


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path):
    (tmp_path / "own.gin").write_bytes(b"\xef\xbb\xbfTrainingConfig.epochs = 3\r\n# end\r\n")
    assert load_config(str(tmp_path / "own.gin")).experiment.training.epochs == 3


def test_a_machines_description_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\n")
    (tmp_path / "machine.gin").write_text("import evil\nHardwareConfig.price_usd_per_hour = 3\n")
    with pytest.raises(UsageError, match=r"machine\.gin:1: .*must only describe a machine"):
        load_hardware("machine.gin")
    assert not (tmp_path / "ran").exists()


def test_the_command_line_says_it_in_a_line_and_exits_with_2(tmp_path):
    (tmp_path / "bad.gin").write_bytes(NO_GIN[0][0])
    (tmp_path / "run").mkdir()
    for arguments in (
        ("train", "--gin_file", "bad.gin", "--shard_dir", "s", "--run_dir", "r"),
        ("bench", "--gin_file", "bad.gin"),
    ):
        command = [sys.executable, "-m", "tfasr.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "bad.gin:1: a bracket" in done.stderr
        assert "Traceback" not in done.stderr
