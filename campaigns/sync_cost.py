"""What it costs that checkpoints and ledger survive a power loss, as shares of the demo's training.

    python campaigns/sync_cost.py [--seed 1] [--batch_size 8] [--folder DIR]

Trains as ``tfasr demo`` does, in a process in which every ``fsync`` is timed, and prints the
seconds of those beside the ledger's own interval of checkpoints, which they are part of, and the
wall clock. Exits with 1 where the syncs took 0.5 % of the time or more.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tfasr.corpora.synthetic import make_synthetic_corpus
from tfasr.tta.run import load_run

MOST_SHARE = 0.005

TIMED = """
import atexit, json, os, time
spent = {}
sync = os.fsync
def timed(descriptor):
    name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
    began = time.perf_counter()
    sync(descriptor)
    took = time.perf_counter() - began
    kind = "ledger" if name == "events.jsonl" else "checkpoint" if "step-" in name else "other"
    count, seconds = spent.get(kind, (0, 0.0))
    spent[kind] = (count + 1, seconds + took)
os.fsync = timed
atexit.register(lambda: open(os.environ["SYNCS_TO"], "w").write(json.dumps(spent)))
"""


def main() -> None:
    """Trains, and prints what syncing took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument(
        "--folder", type=Path, help="where all goes; default: a temporary one"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        share = measure(
            arguments.folder or Path(temporary), arguments.seed, arguments.batch_size
        )
    sys.exit(0 if share < MOST_SHARE else 1)


def measure(folder: Path, seed: int, batch_size: int) -> float:
    """Returns the share of a training's time that its syncs took; prints what they were."""
    make_synthetic_corpus(folder / "corpus")
    shards = folder / "shards"
    corpus = ("--corpus", "synthetic", "--corpus_dir", folder / "corpus")
    tfasr("prepare", *corpus, "--shard_dir", shards)
    (folder / "timed_syncs.py").write_text(TIMED)
    run_dir = folder / "run"
    found = folder / "syncs.json"
    bindings = (
        *("--gin_binding", f"PipelineConfig.global_batch_size = {batch_size}"),
        *("--gin_binding", f"TrainingConfig.seed = {seed}"),
    )
    words = (
        "--gin_file",
        "demo.gin",
        "--shard_dir",
        shards,
        "--run_dir",
        run_dir,
        *bindings,
    )
    tfasr("train", *words, "--import", folder / "timed_syncs.py", SYNCS_TO=found)
    run = load_run(run_dir)
    spent = json.loads(found.read_text())
    wall_s = run.wall_s
    print(f"{run.status} after {wall_s:.1f} s; load {os.getloadavg()[0]:.1f}")
    for kind, (count, seconds) in spent.items():
        each = 1000 * seconds / count
        print(
            f"{kind}: {count} syncs, {each:.2f} ms each, {100 * seconds / wall_s:.3f} % of the time"
        )

    whole = sum(seconds for _, seconds in spent.values())
    print(f"all syncs: {whole:.3f} s, {100 * whole / wall_s:.3f} % (less than 0.5 %)")
    booked = run.intervals["checkpoint"]
    print(
        f"checkpoint, as booked, writing included: {booked:.3f} s, {100 * booked / wall_s:.3f} %"
    )
    return whole / wall_s


def tfasr(*words: object, **environment: object) -> None:
    """Runs a command of the command line."""
    command = [sys.executable, "-m", "tfasr.cli", *map(str, words)]
    variables = {name: str(value) for name, value in environment.items()}
    subprocess.run(
        command, check=True, env={**os.environ, **variables}, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    main()
