"""Time to a target on AN4, compared with a PyTorch twin, for three seeds each.

    tfasr prepare --corpus tsv --corpus_dir an4 --manifest splits/train.tsv --split train \\
        --shard_dir shards/an4
    tfasr prepare --corpus tsv --corpus_dir an4 --manifest splits/dev.tsv --split validation \\
        --shard_dir shards/an4
    python benchmarks/time_to_accuracy.py --shard_dir shards/an4 --run_dir runs/an4_peers
    python benchmarks/time_to_accuracy.py --shard_dir shards/an4 --run_dir runs/an4_fast \\
        --gin_file fast/an4.gin --baseline_gin_file an4.gin --seeds 1 2 3 4 5

tfasr's run is ``tfasr train``; the twin's is `twin/torch_training.py`. Both read the
same gin file and take the same batches in the same order
(`tfasr.data.batches.BatchSource`: features, normalisation, padding, SpecAugment), the
same sizes, initialisation scheme (Glorot uniform, orthogonal, forget gates' biases 1),
masked batch statistics, dropout, the same optimizer (Adadelta, Adam or AdamW) with the
same settings and learning rates, and the same greedy decoder after every epoch. The
twin also saves a checkpoint per epoch and writes a ledger. Each framework draws weights
and dropout for the seed; none prints sentences or decodes a second time. A run ends
when the median of three evaluations meets the target. ``--baseline_gin_file`` adds a
third system: tfasr with another preset, such as the one that a fast preset should beat.

Runs take turns by seed, each in its own process. Finished runs are kept, so an
interrupted benchmark continues; unfinished runs are moved to ``unfinished``. Times
start at the model's creation and include everything. Takes about ten minutes per seed
on two idle cores; use an otherwise idle machine. `benchmarks/training_step.py`
describes how to install PyTorch.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from twin import results
from twin.tta_tables import tta_tables
from twin.worker import environment

from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE
from tfasr.ledger.events import read_events
from tfasr.telemetry.compiled import require_extensions
from tfasr.tta.metrics import Target, parse_target

MODULES = {
    "tfasr": ["tfasr.cli", "train"],
    "torch": ["twin.torch_training"],
    "baseline": ["tfasr.cli", "train"],
}
SETTINGS_FILE = "benchmark.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard_dir", type=Path, required=True)
    parser.add_argument(
        "--run_dir", type=Path, required=True, help="gets SYSTEM/seed-N"
    )
    peers = ["tfasr", "torch"]
    parser.add_argument("--systems", nargs="+", choices=peers, default=peers)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--target", type=target, default=("cer", 0.15), help="default: cer=0.15"
    )
    parser.add_argument("--epochs", type=int, help="at most; default: the gin file's")
    parser.add_argument("--gin_file", default="an4.gin", help="default: %(default)s")
    parser.add_argument(
        "--gin_binding", action="append", default=[], help="for both; repeatable"
    )
    parser.add_argument(
        "--baseline_gin_file", help="what tfasr trains by as the system baseline"
    )
    parser.add_argument(
        "--baseline_gin_binding", action="append", default=[], help="repeatable"
    )
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument(
        "--out", type=Path, help="also write JSON and Markdown: a file or a folder"
    )
    flags = parser.parse_args()

    require_extensions()
    systems, notes, versions = installed(flags.systems)

    if flags.baseline_gin_file:
        systems.append("baseline")

    keep_settings(flags)
    runs: dict[str, dict[int, Path]] = {system: {} for system in systems}
    for number, seed in enumerate(flags.seeds):
        # The order changes, so that a machine that slows down affects both.
        order = systems
        if number % 2:
            order = systems[::-1]

        for system in order:
            runs[system][seed] = finished_run(system, seed, flags)

    tables = tta_tables(runs, flags.target)
    outcome = results.result("time_to_accuracy", tables, notes, versions)
    results.publish(outcome, flags.out, flags.format)


def target(text: str) -> Target:
    """Returns metric and value of a target as `tfasr report` takes them."""
    try:
        return parse_target(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def installed(systems: list[str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Returns the installed systems, a note on those missing, and PyTorch's version."""
    if "torch" not in systems:
        return systems, [], {}

    if importlib.util.find_spec("torch"):
        return systems, [], {"torch": metadata.version("torch")}

    return (
        [s for s in systems if s != "torch"],
        ["PyTorch is not installed and left out."],
        {},
    )


def keep_settings(flags) -> None:
    """Records what the folder's runs have in common; refuses to mix them with others."""
    settings = {
        "shard_dir": str(flags.shard_dir.resolve()),
        "gin_file": flags.gin_file,
        "bindings": bindings(flags),
    }
    if flags.baseline_gin_file:
        settings["baseline"] = baseline(flags)

    path = flags.run_dir / SETTINGS_FILE
    flags.run_dir.mkdir(parents=True, exist_ok=True)
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != settings:
        raise SystemExit(
            f"--run_dir must hold runs of the same settings. {path} notes others: "
            "choose another --run_dir, or the settings noted there."
        )

    path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def bindings(flags) -> list[str]:
    """Returns the gin bindings of both peers' runs, seeds aside."""
    chosen = [*flags.gin_binding, *common_bindings(flags)]
    if flags.epochs is not None:
        chosen.append(f"TrainingConfig.epochs = {flags.epochs}")

    return chosen


def baseline(flags) -> list[str]:
    """Returns the baseline's gin file and bindings, seeds aside."""
    options = [*flags.baseline_gin_binding, *common_bindings(flags)]
    return [flags.baseline_gin_file, *options]


def common_bindings(flags) -> list[str]:
    """Returns the gin bindings of all runs, the baseline's too."""
    return [
        f"TrainingConfig.targets = {[flags.target]!r}",
        "TrainingConfig.stop_at_targets = True",
        "TrainingConfig.sentences_every_steps = 0",
        "TrainingConfig.second_decoder = ''",
    ]


def finished_run(system: str, seed: int, flags) -> Path:
    """Returns the folder of a system's run for a seed, training it if missing."""
    run_dir = flags.run_dir / system / f"seed-{seed}"
    if is_finished(run_dir):
        say(f"{run_dir} is there already")
        return run_dir

    if run_dir.exists():
        aside = flags.run_dir / "unfinished"
        aside.mkdir(exist_ok=True)
        number = sum(1 for _ in aside.iterdir())
        run_dir.rename(aside / f"{number}-{system}-seed-{seed}")

    say(f"{system}, seed {seed}, trains into {run_dir}")
    if system == "baseline":
        gin_file, *options = baseline(flags)
    else:
        gin_file = flags.gin_file
        options = bindings(flags)

    command = [sys.executable, "-m", *MODULES[system], "--gin_file", gin_file]
    for binding in [*options, f"TrainingConfig.seed = {seed}"]:
        command += ["--gin_binding", binding]

    command += ["--shard_dir", str(flags.shard_dir), "--run_dir", str(run_dir)]
    log = flags.run_dir / "logs" / f"{system}-seed-{seed}.log"
    log.parent.mkdir(exist_ok=True)
    run_dir.parent.mkdir(exist_ok=True)

    with log.open("w") as file:
        done = subprocess.run(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(),
            check=False,
        )

    if done.returncode:
        end = log.read_text(errors="replace")[-2000:]
        raise SystemExit(
            f"Every run must succeed. {system}, seed {seed}, did not:\n{end}"
        )

    return run_dir


def is_finished(run_dir: Path) -> bool:
    """Whether a folder's run finished."""
    if not (run_dir / EVENTS_FILE).is_file():
        return False

    try:
        last = read_events(run_dir)[-1]
    except (IndexError, ValueError):
        return False

    return last["key"] == "run_stop" and last["metadata"].get("status") == "success"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
