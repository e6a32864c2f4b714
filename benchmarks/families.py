"""Every model family on the demo's speech, one run each: its cost and its error rates.

    tfasr prepare --corpus synthetic --corpus_dir CORPUS --shard_dir SHARDS
    tfasr prepare --corpus synthetic --corpus_dir CORPUS --shard_dir DS2 --gin_file ds2_demo.gin
    python benchmarks/families.py --shard_dir SHARDS --ds2_shard_dir DS2 --run_dir RUNS

Each run is a ``tfasr train`` with the family's preset, batches of 16 and the same
number of epochs, on one thread, one after another. Then `tfasr bench step` times its
step and large matrix products, in the same process on one thread. Finished runs are
kept, so an interrupted benchmark continues. Deep Speech 2 has other features; all else
is the same. Times start at the model's creation, include everything, and depend on the
machine and its other work; nothing else does. A single seed shows what a family can
reach here, but can't rank families that are close.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from twin import results
from twin.worker import environment

from tfasr.alphabet import Alphabet
from tfasr.kit.files import ALPHABET_FILE, EVENTS_FILE
from tfasr.ledger.events import read_events
from tfasr.models.model import can_stream, model_flops
from tfasr.training.from_gin import load_config
from tfasr.tta.run import load_run

FAMILIES = {
    "paper (LSTM)": "demo.gin",
    "Deep Speech 2": "ds2_demo.gin",
    "GRU": "gru_demo.gin",
    "bidirectional GRU": "bidirectional_gru_demo.gin",
    "separable convolutions": "separable_conv_demo.gin",
    "Conformer": "conformer_demo.gin",
}
TARGET = ("cer", 0.15)
_BATCH = 16
_FRAMES_A_SECOND = 100
_SECONDS = 2  # about an utterance of the demo; the share of attention grows with it


def main() -> None:
    """Trains missing runs and makes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard_dir", type=Path, required=True)
    parser.add_argument("--ds2_shard_dir", type=Path, required=True)
    parser.add_argument("--run_dir", type=Path, required=True)
    parser.add_argument(
        "--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES)
    )
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument(
        "--out", type=Path, help="also write JSON and Markdown: a file or a folder"
    )
    flags = parser.parse_args()

    rows = [
        row(family, trained(family, flags), timed_step(family, flags))
        for family in flags.families
    ]
    columns = [
        ("family", "family"),
        ("preset", "preset"),
        ("parameters", "parameters"),
        ("gflop_per_audio_s", "GFLOP a second of audio"),
        ("minutes", "minutes to CER 15 %"),
        ("epoch", "epoch"),
        ("cer_pct", "last CER %"),
        ("wer_pct", "last WER %"),
        ("epochs", "epochs"),
        ("audio_s_per_s", "audio s/s"),
        ("step_ms", "step ms"),
        ("ceiling_pct", "of the matmul ceiling %"),
        ("streaming", "streaming"),
    ]
    notes = [
        f"One seed, {flags.epochs} epochs, batches of {_BATCH}, one thread. "
        f"GFLOP: forward, of {_SECONDS} s. CER and WER: of the validation split, "
        "greedy, after the last epoch. Audio s/s: of steady training steps. "
        f"Step: {_BATCH} utterances of {_SECONDS} s, float32, its operations a second "
        "against those of large matrix products in the same process.",
    ]
    tables = [
        {
            "title": "Model families on the demo's speech",
            "columns": columns,
            "rows": rows,
        }
    ]
    outcome = results.result("families", tables, notes, {})
    results.publish(outcome, flags.out, flags.format)


def trained(family: str, flags: argparse.Namespace) -> Path:
    """Returns the folder of a family's run, training it if missing."""
    preset = FAMILIES[family]
    run_dir = flags.run_dir / preset.removesuffix(".gin")
    if is_finished(run_dir):
        return run_dir

    shards = flags.shard_dir
    if preset.startswith("ds2"):
        shards = flags.ds2_shard_dir

    bindings = [
        f"TrainingConfig.targets = {[TARGET]}",
        "TrainingConfig.stop_at_targets = False",
        f"TrainingConfig.epochs = {flags.epochs}",
        "TrainingConfig.sentences_every_steps = 0",
        f"PipelineConfig.global_batch_size = {_BATCH}",
    ]
    command = ["train", "--gin_file", preset]
    for binding in bindings:
        command += ["--gin_binding", binding]

    command += ["--shard_dir", str(shards), "--run_dir", str(run_dir)]

    if (run_dir / EVENTS_FILE).exists():
        command.append("--resume")

    tfasr(*command)
    return run_dir


def timed_step(family: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the results of `tfasr bench step` for a family, timing it if missing."""
    folder = flags.run_dir / f"{FAMILIES[family].removesuffix('.gin')}_step"
    if not (folder / "results.json").exists():
        size = ("--batch", str(_BATCH), "--frames", str(_SECONDS * _FRAMES_A_SECOND))
        options = ("--precision", "float32", "--out", str(folder))
        tfasr("bench", "step", "--gin_file", FAMILIES[family], *size, *options)

    (outcome,) = json.loads((folder / "results.json").read_text())["rows"]
    return outcome


def tfasr(*words: str) -> None:
    """Runs a command of tfasr on one thread."""
    one_thread = {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environ = {**os.environ, **environment(), **one_thread}
    subprocess.run([sys.executable, "-m", "tfasr.cli", *words], check=True, env=environ)


def is_finished(run_dir: Path) -> bool:
    """Whether a folder's run finished."""
    if not (run_dir / EVENTS_FILE).exists():
        return False

    last = read_events(run_dir)[-1:]
    return any(event["metadata"].get("status") == "success" for event in last)


def row(family: str, run_dir: Path, step: dict[str, Any]) -> dict[str, Any]:
    """Returns a family's row from a finished run and a timed step."""
    run = load_run(run_dir)
    experiment = load_config(FAMILIES[family]).experiment

    features = experiment.features.num_features
    classes = run_classes(run_dir)
    frames = _SECONDS * _FRAMES_A_SECOND
    flops = model_flops(experiment.model, features, classes, 1, frames, training=False)

    metric, value = TARGET
    met = run.time_to_accuracy(**{metric: value})
    last = {name: run.accuracy_curve(name)[-1] for name in ("cer", "wer")}

    return {
        "family": family,
        "preset": FAMILIES[family],
        "parameters": run.fact("parameters"),
        "gflop_per_audio_s": flops / 1e9 / _SECONDS,
        "minutes": met.minutes,
        "epoch": met.epoch,
        "cer_pct": 100 * last["cer"].value,
        "wer_pct": 100 * last["wer"].value,
        "epochs": last["cer"].epoch,
        "audio_s_per_s": run.throughput().audio_s_per_s,
        "step_ms": 1000 * step["step_s"],
        "ceiling_pct": 100 * step["model_flops_utilisation"],
        "ceiling_gflop_per_s": step["ceiling_flops_per_s"] / 1e9,
        "streaming": "yes" if can_stream(experiment.model) else "no",
    }


def run_classes(run_dir: Path) -> int:
    """Returns how many classes a run's alphabet has."""
    return Alphabet.load(run_dir / ALPHABET_FILE).num_classes


if __name__ == "__main__":
    main()
