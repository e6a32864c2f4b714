"""A manifest of millions of entries: listed, planned, indexed and opened for training.

Lines per second and peak memory, compared with a plain process that reads the lines:

    python benchmarks/large_manifest.py --entries 1000000 --folder /tmp/large [--format json]

The entries have different ids and transcripts and share a thousand short recordings,
whose headers are read once for each entry. Decoding and features are left out: the
shards are empty files with sidecars like those from packing. Every stage has its own
process. "read" parses the lines; "list" lists, selects, sorts and plans, up to the
start of packing; "list_again" does the same with headers recorded by an interrupted
call; "index" builds the index from existing sidecars; "open" is training's use of the
index before its first batch. On a busy machine, trust the CPU seconds, which count a
process from its start.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import orjson

RECORDINGS = 1000
SECONDS = 0.5
PER_SHARD = 64
WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "that",
    "was",
    "he",
    "for",
    "on",
    "are",
    "with",
    "as",
    "his",
)
STAGES = ("read", "list", "list_again", "index", "open")


def make(folder: Path, entries: int) -> Path:
    """Writes the recordings and the manifest if they are missing."""
    import numpy as np
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / f"train-{entries}.json"
    if manifest.exists():
        return manifest

    for number in range(RECORDINGS):
        samples = np.random.default_rng(number).uniform(-0.3, 0.3, int(SECONDS * 16000))
        soundfile.write(folder / f"{number:04d}.flac", samples, 16000)

    draw = random.Random(0)
    partial = manifest.with_suffix(".partial")
    with partial.open("w") as file:
        for number in range(entries):
            entry = {
                "audio_filepath": f"{number % RECORDINGS:04d}.flac",
                "id": f"book-{draw.randrange(10**6):06d}/part-{number:08d}",
                "text": " ".join(draw.choices(WORDS, k=4)),
                "duration": SECONDS,
                "speaker": f"reader-{number % 5000:04d}",
            }
            file.write(json.dumps(entry) + "\n")

    partial.rename(manifest)
    return manifest


class StopError(Exception):
    """Ends a preparation when packing would start."""


class Stopping(concurrent.futures.Executor):
    """Ends a preparation at its first shard, and records the time."""

    began_s: float

    def submit(self, work, number, part):
        self.began_s = time.perf_counter()
        raise StopError


def sidecar(number: int, entries: list[dict]) -> dict:
    """Returns the sidecar that packing would write for a shard of these entries."""
    return {
        "file": f"train-{number:05d}.tfrecord",
        "bytes": 0,
        "sha256": hashlib.sha256(b"").hexdigest(),
        "records_sha256": hashlib.sha256(str(number).encode()).hexdigest(),
        "feature_sums": {"frames": 47, "total": [0.5] * 93, "squares": [1.5] * 93},
        "utterances": [
            {
                "position": PER_SHARD * number + place,
                "id": entry["id"],
                "text": entry["text"],
                "speaker": entry["speaker"],
                "duration_s": entry["duration"],
                "frames": 47 + place,
                "frames_needed": 10,
                "content": hashlib.blake2b(
                    entry["id"].encode(), digest_size=8
                ).hexdigest(),
                "recording": "",
            }
            for place, entry in enumerate(entries)
        ],
        "bad": [],
        "remarks": [],
    }


def make_sidecars(manifest: Path, folder: Path) -> int:
    """Writes an empty shard and its sidecar for every 64 entries; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    with manifest.open("rb") as file:
        number = 0
        while entries := [
            json.loads(line) for line in itertools.islice(file, PER_SHARD)
        ]:
            path = folder / f"train-{number:05d}.tfrecord"
            path.write_bytes(b"")
            path.with_suffix(".json").write_text(json.dumps(sidecar(number, entries)))
            number += 1

    return number


def read_lines(manifest: Path) -> dict[str, float]:
    began = time.perf_counter()
    with manifest.open("rb") as file:
        count = sum(1 for line in file if json.loads(line)["text"])

    return {"lines": count, "seconds": time.perf_counter() - began}


def made_packing():
    from tfasr.alphabet import Alphabet
    from tfasr.data.features import FeatureConfig
    from tfasr.data.packing import Packing
    from tfasr.data.shards import ShardConfig
    from tfasr.models.recurrent import AcousticModelConfig

    return Packing(
        Alphabet(),
        FeatureConfig(),
        ShardConfig(utterances_per_shard=PER_SHARD),
        AcousticModelConfig(),
    )


def list_lines(manifest: Path, shard_dir: Path) -> dict[str, float]:
    import tensorflow  # noqa: F401 - its import is no part of the time

    from tfasr.corpora.manifests import read_json_manifest
    from tfasr.data.prepare import pack_split

    packing = made_packing()
    executor = Stopping()
    began_s = time.perf_counter()

    with contextlib.suppress(StopError):
        corpus = read_json_manifest(manifest)
        pack_split(corpus, "train", shard_dir, packing, executor=executor)

    return {"seconds": executor.began_s - began_s}


def index_lines(manifest: Path, shard_dir: Path) -> dict[str, float]:
    import tensorflow  # noqa: F401 - its import is no part of the time

    from tfasr.data.manifest import PackedIndex
    from tfasr.data.prepare import Dropped, Selection
    from tfasr.data.rows import Rows

    folder = shard_dir / "train"
    packing = made_packing()
    count = make_sidecars(manifest, folder)
    began_s = time.perf_counter()
    began_cpu_s = time.process_time()

    sidecars = (
        orjson.loads((folder / f"train-{n:05d}.json").read_bytes())
        for n in range(count)
    )
    packed = PackedIndex(folder, sidecars)
    dropped = Dropped(Selection(*(Rows(folder) for _ in range(4))), packed.unpacked)

    manifest_sha256 = packed.write_manifest()
    dropped.write(folder / "dropped.json")
    packed.write_index("train", packing.content(), "planned", dropped, manifest_sha256)
    seconds = time.perf_counter() - began_s

    return {
        "shards": count,
        "seconds": seconds,
        "index_cpu_s": time.process_time() - began_cpu_s,
    }


def open_for_training(shard_dir: Path) -> dict[str, float]:
    import tensorflow  # noqa: F401 - its import is no part of the time

    from tfasr.data.batches import BatchSource, PipelineConfig
    from tfasr.data.features import FeatureConfig
    from tfasr.data.prepare_corpus import overlap
    from tfasr.data.shards import open_split

    began = time.perf_counter()
    split = open_split(shard_dir, "train")
    opened_s = time.perf_counter() - began
    BatchSource(split, FeatureConfig(), PipelineConfig(padding="bucketed"))
    overlap(split.utterances, split.utterances[:2000])
    ready_s = time.perf_counter() - began
    # A pass over all of them.
    longest = max(utterance.frames for utterance in split.utterances)

    return {
        "opened_s": opened_s,
        "ready_s": ready_s,
        "seconds": time.perf_counter() - began,
        "longest": longest,
    }


def run_stage(stage: str, manifest: Path, shard_dir: Path) -> dict[str, float]:
    if stage == "read":
        result = read_lines(manifest)
    elif stage == "index":
        result = index_lines(manifest, shard_dir)
    elif stage == "open":
        result = open_for_training(shard_dir)
    else:
        result = list_lines(manifest, shard_dir)

    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**result, "peak_mib": peak_kib / 1024, "cpu_s": time.process_time()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    manifest = make(arguments.folder, arguments.entries)
    shard_dir = arguments.folder / f"shards-{arguments.entries}"

    if arguments.stage:
        print(json.dumps(run_stage(arguments.stage, manifest, shard_dir)))
        return

    results = {}
    for stage in arguments.stages.split(","):
        command = [
            sys.executable,
            __file__,
            "--stage",
            stage,
            "--entries",
            str(arguments.entries),
        ]
        command += ["--folder", str(arguments.folder)]
        output = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        results[stage] = json.loads(output.splitlines()[-1])
        results[stage]["lines_per_s"] = arguments.entries / results[stage]["seconds"]

        if arguments.format == "table":
            show(stage, results)

    if arguments.format == "json":
        results["load_average"] = os.getloadavg()[0]
        print(json.dumps({"entries": arguments.entries, **results}))


def show(stage: str, results: dict[str, dict[str, float]]) -> None:
    result = results[stage]
    ratio = ""
    if "read" in results and stage != "read":
        ratio = (
            f", {result['lines_per_s'] / results['read']['lines_per_s']:.3f} of reading"
        )

    rest = {
        name: round(value, 1) for name, value in result.items() if name != "lines_per_s"
    }
    print(
        f"{stage:12} {result['lines_per_s']:12,.0f} lines/s{ratio}  {rest}", flush=True
    )


if __name__ == "__main__":
    main()
