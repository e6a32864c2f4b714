"""A study that is killed at random moments and resumed ends as one that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tones import SHARDS, TONES_GIN

pytestmark = pytest.mark.long

STUDY = f"""\
StudyConfig.experiments = ('two', 'four')
StudyConfig.final_splits = ('validation',)
StudyConfig.final_beam_width = 4
StudyConfig.beam_widths = (1, 4)
StudyConfig.published = 'paper'
ExperimentConfig.gin_files = ({str(TONES_GIN)!r},)
ExperimentConfig.published_table = 'Table 4'
two/ExperimentConfig.bindings = (
    'PipelineConfig.global_batch_size = 2', 'TrainingConfig.epochs = 4',
    'TrainingConfig.checkpoint_every_steps = 3')
four/ExperimentConfig.bindings = (
    'PipelineConfig.global_batch_size = 4', 'TrainingConfig.epochs = 6',
    'TrainingConfig.checkpoint_every_steps = 3',
    'TrainingConfig.evaluation_placement = "swapped"')
"""
PATIENCE_S = 600


def start(gin_file: Path, folder: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tfasr.cli", "study", "--gin_file", str(gin_file)]
    command += ["--run_dir", str(folder), "--shard_dir", str(SHARDS), *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    return output


def without_times(folder: Path) -> dict:
    """Returns the report's values but for seconds."""

    def cleaned(value):
        if isinstance(value, dict):
            return {
                key: cleaned(one)
                for key, one in value.items()
                if not key.endswith("_s")
            }
        return [cleaned(one) for one in value] if isinstance(value, list) else value

    return cleaned(json.loads((folder / "report" / "report.json").read_text()))


def test_three_kills_change_nothing_but_the_time(tmp_path):
    gin_file = tmp_path / "tiny.gin"
    gin_file.write_text(STUDY)
    began = time.monotonic()
    finish(start(gin_file, tmp_path / "whole"))
    whole_s = time.monotonic() - began
    folder = tmp_path / "killed"
    seed = random.SystemRandom().randrange(2**32)
    print(f"moments drawn with seed {seed}")
    draw = random.Random(seed)
    for number in range(3):
        process = start(gin_file, folder, *(["--resume"] if number else []))
        time.sleep(draw.uniform(0.05, 0.5) * whole_s)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)

    output = finish(start(gin_file, folder, "--resume"))
    assert without_times(folder) == without_times(tmp_path / "whole")
    tables = [path.name for path in sorted((folder / "report").glob("*.csv"))]
    assert tables == [
        path.name for path in sorted((tmp_path / "whole/report").glob("*.csv"))
    ]
    assert "with Table 4 of the paper" in output
    # Once more: all is done, and the report is written anew.
    assert "train two" not in finish(start(gin_file, folder, "--resume"))
