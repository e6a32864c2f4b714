"""tfasr's own commands as tasks: what users run, on TensorFlow, measured from outside."""

import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.data import SPLITS
from tfasr.kit.files import EVENTS_FILE

Answer = dict[str, Any]

POLICIES = {
    "float32": "float32",
    "tf32": "float32",
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
}
_PREPARED = Path(tempfile.gettempdir()) / "gpu-benchmark-shards"


def agreement(folder: str, name: str, gin_file: str, steps: int) -> Iterator[Answer]:
    """Yields the first losses of ``tfasr train`` here and on the CPU, in float32.

    Also which kernel the recurrent layers took, and the largest relative difference of
    the losses. A CPU's own difference between two runs is 0.

    Args:
        folder: written by `gpu.data.pack`.
        name: names the corpus in that folder.
        gin_file: the recipe, such as "fast/an4.gin".
        steps: how many losses are compared.
    """
    import tfasr

    shards = prepared(Path(folder), name, gin_file)
    answer: Answer = {"steps": steps}
    for device in ("default", "cpu"):
        with tempfile.TemporaryDirectory() as parent:
            run_dir = Path(parent) / "run"
            bindings = [
                "TrainingConfig.epochs = 1",
                "TrainingConfig.targets = []",
                "TrainingConfig.precision = 'float32'",
            ]
            hidden = {"CUDA_VISIBLE_DEVICES": "-1"} if device == "cpu" else {}
            began = time.perf_counter()
            train(gin_file, bindings, shards, run_dir, hidden)
            answer[f"{device}_wall_s"] = time.perf_counter() - began
            recorded = tfasr.load_run(run_dir)
            losses = recorded.steps_to_dataframe()["loss"].tolist()
            answer[f"{device}_losses"] = losses[:steps]
            answer[f"{device}_kernels"] = recorded.fact("lstm_kernel")
        yield answer

    here = answer["default_losses"]
    there = answer["cpu_losses"]
    differences = [
        abs(one - other) / abs(other) for one, other in zip(here, there, strict=True)
    ]
    answer["largest_difference"] = max(differences)
    yield answer


def trained_by_command(
    folder: str,
    name: str,
    gin_file: str,
    seed: int,
    targets: list[tuple[str, float]],
    precision: str,
    epochs: int | None = None,
) -> Answer:
    """Returns the results of ``tfasr train`` until its targets are met.

    The same as `gpu.train.train` yields. ``wall_s`` is the run's; ``process_s`` includes
    imports.
    """
    import tfasr
    from gpu.train import summary

    shards = prepared(Path(folder), name, gin_file)
    bindings = [
        f"TrainingConfig.seed = {seed}",
        f"TrainingConfig.targets = {[tuple(target) for target in targets]!r}",
        "TrainingConfig.stop_at_targets = True",
        f"TrainingConfig.precision = {POLICIES[precision]!r}",
    ]
    if epochs is not None:
        bindings.append(f"TrainingConfig.epochs = {epochs}")
    with tempfile.TemporaryDirectory() as parent:
        run_dir = Path(parent) / "run"
        began = time.perf_counter()
        train(gin_file, bindings, shards, run_dir)
        process_s = time.perf_counter() - began
        recorded = tfasr.load_run(run_dir)
        return {
            **summary(recorded),
            "process_s": process_s,
            "kernels": recorded.fact("lstm_kernel"),
        }


def demo(seeds: int) -> Answer:
    """Returns the results of ``tfasr demo``: seconds, and a summary of each training.

    Args:
        seeds: the most runs of each recipe.
    """
    import tfasr
    from gpu.train import summary

    with tempfile.TemporaryDirectory() as parent:
        began = time.perf_counter()
        run(["demo", "--demo_dir", parent, "--seeds", str(seeds)])
        answer: Answer = {"process_s": time.perf_counter() - began, "runs": {}}
        for ledger in sorted(Path(parent).rglob(EVENTS_FILE)):
            name = str(ledger.parent.relative_to(parent))
            answer["runs"][name] = summary(tfasr.load_run(ledger.parent))

    return answer


def prepared(folder: Path, name: str, gin_file: str) -> Path:
    """Returns a folder of shards made of a packed corpus; keeps it for later tasks."""
    packed = (folder / f"{name}.json").read_bytes()
    # Of this very pack: a trial's has only some of the utterances.
    digest = hashlib.sha256(packed).hexdigest()[:12]
    recipe_name = gin_file.replace("/", "-")
    shards = _PREPARED / str(os.getuid()) / f"{name}-{recipe_name}-{digest}"
    finished = shards / "finished"
    if finished.exists():
        return shards

    recipe = json.loads(packed)
    with tempfile.TemporaryDirectory() as corpus:
        write_corpus(folder, name, recipe, Path(corpus))
        for split, file in SPLITS.items():
            run(
                ["prepare", "--gin_file", gin_file, "--corpus", "tsv"]
                + ["--corpus_dir", corpus, "--manifest", f"splits/{file}.tsv"]
                + ["--split", split, "--shard_dir", str(shards)]
            )

    finished.touch()
    return shards


def write_corpus(folder: Path, name: str, recipe: Answer, to: Path) -> None:
    """Writes a packed corpus as recordings and manifests, as ``tfasr prepare`` reads it."""
    for part in sorted(folder.glob(f"{name}-*.zip")):
        with zipfile.ZipFile(part) as archive:
            archive.extractall(to)

    (to / "splits").mkdir(exist_ok=True)
    for split, rows in recipe["splits"].items():
        with (to / "splits" / f"{SPLITS[split]}.tsv").open(
            "w", encoding="utf-8", newline=""
        ) as file:
            table = csv.writer(file, delimiter="\t", lineterminator="\n")
            table.writerow(["path", "text"])
            table.writerows(rows)


def train(
    gin_file: str,
    bindings: list[str],
    shards: Path,
    run_dir: Path,
    variables: dict[str, str] | None = None,
) -> None:
    """Runs ``tfasr train`` in a process of its own."""
    words = ["train", "--gin_file", gin_file]
    for binding in bindings:
        words += ["--gin_binding", binding]
    run([*words, "--shard_dir", str(shards), "--run_dir", str(run_dir)], variables)


def run(words: list[str], variables: dict[str, str] | None = None) -> None:
    """Runs ``tfasr`` with these arguments.

    Raises:
        RuntimeError: if it fails; with the end of its messages.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "tfasr", *words],
        env=os.environ | {"KERAS_BACKEND": "tensorflow"} | (variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if ended.returncode:
        raise RuntimeError(
            f"tfasr {' '.join(words)} ended with status {ended.returncode}:\n"
            f"{ended.stdout[-1500:]}"
        )
