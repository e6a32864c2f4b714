"""Start-up of `tfasr train` on millions of utterances: seconds and memory.

    python benchmarks/large_training.py --entries 10000000 --folder /tmp/large [--format json]

Creates a training split as `tfasr prepare` does, with tfasr's own functions: normal
records, an index, a manifest and ``columns.npy``; 10 million utterances take 4 GB of
disk. Only decoding and features are left out: records have 26 frames of few different
values, with 4096 made-up texts. Then it starts the command itself, waits for its first
steps in the ledger and ends it with SIGTERM. On a busy machine, trust the CPU seconds
and the memory.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tfasr.telemetry.compiled import require_extensions

PER_SHARD = 64
FRAMES = 26  # of which the default convolution leaves 8
TEXTS = 4096
SECONDS = 0.25
LOOK_EVERY_S = 0.1
BINDINGS = (
    "AcousticModelConfig.conv_filters = 16",
    "AcousticModelConfig.num_lstm_layers = 1",
    "AcousticModelConfig.lstm_units = 16",
    "PipelineConfig.global_batch_size = 64",
    "TrainingConfig.epochs = 1",
)


def made_texts() -> list[str]:
    """Returns texts of two made-up words, without repeated neighbouring letters."""
    draw = random.Random(0)

    def word() -> str:
        letters = [draw.choice("abcdefghijklmnopqrstuvwxyz")]
        for _ in range(draw.randint(1, 2)):
            letters.append(
                draw.choice([c for c in "abcdefghijklmnoprstuvwy" if c != letters[-1]])
            )

        return "".join(letters)

    return [f"{word()} {word()}" for _ in range(TEXTS)]


class MadeRecords:
    """Makes records by adding a position to a few features and texts that it encodes once."""

    def __init__(self, packing, length: int):
        from tfasr.corpora.manifests import ctc_frames_needed
        from tfasr.data.shards import FeatureSums, encode_record

        draw = np.random.default_rng(0)
        self.texts = made_texts()
        self.length = length

        labels = [packing.alphabet.encode(text) for text in self.texts]
        self.frames_needed = [ctc_frames_needed(item) for item in labels]

        # Pairs of equal bytes, which compress well and fast.
        frames = draw.integers(0x30, 0x41, (16, length), np.uint16) * 0x101
        width = packing.features.num_features
        features = [
            np.repeat(item[:, None], width, axis=1).view(np.float16) for item in frames
        ]
        sums = FeatureSums()

        for item in features:
            sums.add(item)

        each = PER_SHARD // len(features)
        self.sums = FeatureSums(
            sums.frames * each, sums.total * each, sums.squares * each
        )
        self._beginnings = {
            size: [
                encode_record(features[n % 16], item, 1 << (7 * size - 1), SECONDS)[
                    :-size
                ]
                for n, item in enumerate(labels)
            ]
            for size in (1, 2, 3, 4)
        }

    def record(self, text: int, position: int) -> bytes:
        """Returns a record like `tfasr.data.shards.encode_record`, whose position comes
        last.
        """
        number = bytearray()
        rest = position
        while rest > 0x7F:
            number.append(rest & 0x7F | 0x80)
            rest >>= 7

        number.append(rest)
        return self._beginnings[len(number)][text] + bytes(number)


def sidecars(
    folder: Path, split: str, count: int, made: MadeRecords
) -> Iterator[dict[str, Any]]:
    """Writes a split's shards and yields the sidecar of each."""
    import tensorflow as tf

    from tfasr.data.manifest import file_sha256
    from tfasr.data.packing import shard_name

    # Z_RLE
    options = tf.io.TFRecordOptions("GZIP", compression_level=1, compression_strategy=3)

    for number, first in enumerate(range(0, count, PER_SHARD)):
        positions = range(first, min(first + PER_SHARD, count))
        texts = [position * 2654435761 % TEXTS for position in positions]
        records = [
            made.record(text, at) for text, at in zip(texts, positions, strict=True)
        ]
        path = folder / f"{shard_name(split, number)}.tfrecord"

        with tf.io.TFRecordWriter(str(path), options) as writer:
            for record in records:
                writer.write(record)

        yield {
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": file_sha256(path),
            "records_sha256": hashlib.sha256(records[0]).hexdigest(),
            "feature_sums": made.sums.to_json(),
            "utterances": [
                {
                    "position": at,
                    "id": f"{split}/book-{at % 9973:04d}/part-{at:08d}",
                    "text": made.texts[text],
                    "speaker": f"{split}-{at % 5003:04d}",
                    "duration_s": SECONDS,
                    "frames": made.length,
                    "frames_needed": made.frames_needed[text],
                    "content": f"{(at * 0x9E3779B97F4A7C15 + len(split)) % 2**64:016x}",
                    "recording": "",
                }
                for text, at in zip(texts, positions, strict=True)
            ],
            "bad": [],
            "remarks": [],
        }


def make_split(shard_dir: Path, split: str, count: int, frames: int = FRAMES) -> None:
    """Writes a split if it is missing."""
    from tfasr.alphabet import Alphabet
    from tfasr.data.features import FeatureConfig
    from tfasr.data.manifest import PackedIndex
    from tfasr.data.packing import Packing
    from tfasr.data.prepare import Dropped, Selection
    from tfasr.data.rows import Rows
    from tfasr.data.shards import ShardConfig
    from tfasr.models.recurrent import AcousticModelConfig

    folder = shard_dir / split
    if (folder / "index.json").exists():
        return

    folder.mkdir(parents=True, exist_ok=True)
    shards = ShardConfig(utterances_per_shard=PER_SHARD)
    packing = Packing(Alphabet(), FeatureConfig(), shards, AcousticModelConfig())
    packed = PackedIndex(
        folder, sidecars(folder, split, count, MadeRecords(packing, frames))
    )
    dropped = Dropped(Selection(*(Rows(folder) for _ in range(4))), packed.unpacked)
    manifest_sha256 = packed.write_manifest()
    packed.write_index(split, packing.content(), "made", dropped, manifest_sha256)


def started(shard_dir: Path, steps: int) -> dict[str, float]:
    """Starts `tfasr train`, waits for its first steps and ends it."""
    with tempfile.TemporaryDirectory() as temporary:
        run_dir = Path(temporary) / "run"
        command = [
            sys.executable,
            "-m",
            "tfasr.cli",
            "train",
            "--run_dir",
            str(run_dir),
        ]
        command += ["--shard_dir", str(shard_dir)]

        for binding in BINDINGS:
            command += ["--gin_binding", binding]

        began_s = time.monotonic()

        with (Path(temporary) / "log").open("w+") as log:
            child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            process = psutil.Process(child.pid)
            events = run_dir / "events.jsonl"
            result: dict[str, float] = {}

            while child.poll() is None and "steps_s" not in result:
                time.sleep(LOOK_EVERY_S)
                text = ""
                if events.exists():
                    text = events.read_text()

                done = text.count('"train_step"')
                if text.count('"run_start"') and "run_start_s" not in result:
                    result["run_start_s"] = time.monotonic() - began_s

                if done and "first_step_s" not in result:
                    result |= {
                        "first_step_s": time.monotonic() - began_s,
                        **held(process),
                    }

                if done >= steps:
                    result |= {"steps_s": time.monotonic() - began_s}
                    result["steps_peak_mib"] = held(process)["peak_mib"]

            child.send_signal(signal.SIGTERM)
            child.wait(120)
            log.seek(0)

            if "steps_s" not in result:
                raise SystemExit(
                    f"tfasr train ended before step {steps}:\n{log.read()}"
                )

        return result


def held(process: psutil.Process) -> dict[str, float]:
    """Returns a process's peak memory, and its CPU seconds including its children's."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "peak_mib": int(peak.split()[1]) / 1024,
        "cpu_s": sum(process.cpu_times()[:4]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument(
        "--steps", type=int, default=20, help="to wait for; default: %(default)s"
    )
    parser.add_argument("--only", choices=("make", "train"))
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()

    require_extensions()
    shard_dir = arguments.folder / f"split-{arguments.entries}"
    result: dict[str, Any] = {"entries": arguments.entries}

    if arguments.only != "train":
        make_split(shard_dir, "train", arguments.entries)
        make_split(shard_dir, "validation", 2000)
        result["make_cpu_s"] = time.process_time()
        result["make_peak_mib"] = (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        )

    if arguments.only != "make":
        result |= started(shard_dir, arguments.steps)

    result["load_average"] = os.getloadavg()[0]
    result = {name: round(value, 1) for name, value in result.items()}

    if arguments.format == "json":
        print(json.dumps(result))
        return

    for name, value in result.items():
        print(f"{name:20}{value:>14,}")


if __name__ == "__main__":
    main()
