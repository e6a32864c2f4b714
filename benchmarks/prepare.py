"""FLAC to shards compared with FLAC decoding alone, in seconds of audio per second.

    python benchmarks/prepare.py --audio_dir .../LibriSpeech [--copies 5] [--format json]

Decoding is a lower bound on any preparation: soundfile reading the same files, one
after another, on one core. Both are measured in alternation, without the first round.
On a busy machine, trust the CPU seconds, which hardly depend on other work.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import soundfile

from tfasr.data.prepare_corpus import prepare


def link_corpus(audio_dir: Path, folder: Path, copies: int) -> tuple[list[Path], float]:
    """Links every FLAC ``copies`` times under new names; returns the links and their
    seconds.
    """
    sources = sorted(audio_dir.rglob("*.flac"))
    if not sources:
        raise SystemExit(f"--audio_dir must hold FLAC files. Received: {audio_dir}.")

    links = []
    seconds = 0.0
    lines = ["path\tspeaker\tseconds\ttext"]

    for source in sources:
        info = soundfile.info(source)
        for copy in range(copies):
            link = folder / f"{source.stem}-{copy}.flac"
            link.symlink_to(source.resolve())
            links.append(link)
            seconds += info.duration
            lines.append(
                f"{link.name}\tnobody\t{info.duration:.3f}\tno words matter here"
            )

    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    return links, seconds


def decode_all(links: list[Path]) -> float:
    began = time.perf_counter()
    for link in links:
        soundfile.read(link, dtype="float32")

    return time.perf_counter() - began


def prepare_all(folder: Path, shard_dir: Path, compression: str) -> float:
    from tfasr.data.shards import ShardConfig

    began = time.perf_counter()
    prepare(
        corpus="tsv",
        corpus_dir=folder,
        manifest="train.tsv",
        split="train",
        shard_dir=shard_dir,
        shards=ShardConfig(max_duration_s=0.0, compression=compression),
    )
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audio_dir", type=Path, required=True)
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--compression", default="GZIP", help="of the shards; '' for none"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        links, seconds = link_corpus(arguments.audio_dir, folder, arguments.copies)
        decoding = []
        preparing = []
        decoding_cpu = []
        preparing_cpu = []

        for number in range(arguments.rounds + 1):
            shard_dir = folder / f"shards-{number}"
            began_s = time.process_time()
            decoded_s = decode_all(links)
            decoded_cpu_s = time.process_time() - began_s
            prepared_s = prepare_all(folder, shard_dir, arguments.compression)

            if number:
                decoding.append(seconds / decoded_s)
                preparing.append(seconds / prepared_s)
                decoding_cpu.append(decoded_cpu_s / seconds)
                preparing_cpu.append(
                    (time.process_time() - began_s - decoded_cpu_s) / seconds
                )

    result = {
        "audio_s": round(seconds, 1),
        "cores": os.cpu_count(),
        "decode_one_core_audio_s_per_s": round(statistics.median(decoding)),
        "prepare_audio_s_per_s": round(statistics.median(preparing)),
        "prepare_to_decode": round(
            statistics.median(preparing) / statistics.median(decoding), 3
        ),
        "decode_cpu_us_per_audio_s": round(1e6 * statistics.median(decoding_cpu)),
        "prepare_cpu_us_per_audio_s": round(1e6 * statistics.median(preparing_cpu)),
        "rounds": arguments.rounds,
        "load_average": os.getloadavg()[0],
    }
    if arguments.format == "json":
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
