"""Small studies as people run them: left alone, killed, interrupted, extended.

``python -m tests.studies.races FOLDER [NAME ...]`` makes them with real processes, some
minutes each, and writes the archives of tests/data_records/studies. The name "faster"
is the race whose submission is in tests/data_records/faster.
"""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.studies.dask_hosts import dask_hosts
from tests.tones import SHARDS
from tfasr.studies.records import pack

RECORDS = Path(__file__).parents[1] / "data_records"
PATIENCE_S = 900
PAIRS = ("--gin_binding", "StudyConfig.test = 'pairs'")
STUDY = """\
StudyConfig.experiments = ('two', 'four')
StudyConfig.seeds = SEEDS
StudyConfig.most_taken = MOST
ExperimentConfig.gin_files = ('tones.gin',)
two/ExperimentConfig.bindings = (
    'TrainingConfig.epochs = 4', 'TrainingConfig.checkpoint_every_steps = 3',
    'DecoderConfig.name = "greedy"')
four/ExperimentConfig.bindings = (
    'TrainingConfig.epochs = 4', 'TrainingConfig.checkpoint_every_steps = 3',
    'DecoderConfig.name = "greedy"', 'PipelineConfig.global_batch_size = 8')
"""


def start(
    folder: Path, seeds: str, *more: str, most_taken: float = 1.0
) -> subprocess.Popen:
    gin_file = folder.with_suffix(".gin")
    shutil.copy(RECORDS / "tones" / "challenger.gin", folder.with_name("tones.gin"))
    gin_file.write_text(STUDY.replace("SEEDS", seeds).replace("MOST", str(most_taken)))
    command = [sys.executable, "-m", "tfasr.cli", "study", "--gin_file", str(gin_file)]
    command += ["--run_dir", str(folder), "--shard_dir", str(SHARDS), *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen) -> None:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output


def stop(process: subprocess.Popen, ledger: Path, number: int) -> None:
    """Ends a study by a signal once a run of it has trained some steps."""
    wait_for(
        process,
        lambda: ledger.is_file() and ledger.read_bytes().count(b'"train_step"') >= 5,
    )
    os.kill(process.pid, number)
    process.communicate(timeout=PATIENCE_S)


def wait_for(process: subprocess.Popen, happens: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not happens():
        assert process.poll() is None
        assert time.monotonic() - began < PATIENCE_S
        time.sleep(0.02)


def plain(folder: Path) -> None:
    finish(start(folder, "(1, 2)"))


def killed(folder: Path) -> None:
    stop(
        start(folder, "(1, 2)"),
        folder / "runs/four/seed_1/events.jsonl",
        signal.SIGKILL,
    )
    finish(start(folder, "(1, 2)", "--resume"))


def interrupted_twice(folder: Path) -> None:
    stop(start(folder, "(1,)"), folder / "runs/two/events.jsonl", signal.SIGINT)
    stop(
        start(folder, "(1,)", "--resume"),
        folder / "runs/four/events.jsonl",
        signal.SIGTERM,
    )
    finish(start(folder, "(1,)", "--resume"))


def extended(folder: Path) -> None:
    finish(start(folder, "(1,)"))
    finish(start(folder, "(1, 3)", "--resume"))


def unfinished(folder: Path) -> None:
    stop(
        start(folder, "(1, 2)"),
        folder / "runs/four/seed_1/events.jsonl",
        signal.SIGKILL,
    )


def overridden(folder: Path) -> None:
    """Runs a preset whose optimizer another file replaces: a line of it has no effect."""
    folder.parent.mkdir(exist_ok=True)
    more = ("TrainingConfig.optimizer = @SGD", "SGD.learning_rate = 0.1")
    text = "\n".join(("include 'tones.gin'", "TrainingConfig.epochs = 3", *more))
    folder.with_name("other.gin").write_text(text)
    finish(
        start(
            folder,
            "(1,)",
            "--gin_binding",
            "ExperimentConfig.gin_files = ('other.gin',)",
        )
    )


def on_hosts(folder: Path) -> None:
    with dask_hosts(folder.with_name("dask"), "127.0.0.2", "127.0.0.3") as hosts:
        finish(start(folder, "(1, 2)", *PAIRS, *hosts.flags))


def lost_host(folder: Path) -> None:
    """Loses a host in its second training, which doesn't come back in time."""
    with dask_hosts(folder.with_name("dask"), "127.0.0.2") as hosts:
        more = [*PAIRS, *hosts.flags, "--wait_for_host", "5"]
        study = start(folder, "(1, 2)", *more)
        listed = folder / "starts.jsonl"
        wait_for(
            study,
            lambda: listed.is_file() and listed.read_bytes().count(b'"begun"') == 2,
        )
        hosts.start_worker("127.0.0.3")
        hosts.wait_for("127.0.0.3")
        hosts.kill("127.0.0.2")
        finish(study)


BUSY = "while True: pass"


def disturbed(folder: Path) -> None:
    """Disturbs the first run by four busy programs per core, so that it is trained again."""
    study = start(folder, "(1,)", most_taken=0.2)
    starts = folder / "starts.jsonl"
    while not (folder / "runs/two/events.jsonl").is_file():
        assert study.poll() is None
        time.sleep(0.02)

    number = 4 * (os.cpu_count() or 1)
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    while b'"end"' not in starts.read_bytes() and study.poll() is None:
        time.sleep(0.1)
    for program in programs:
        program.kill()
        program.wait()

    finish(study)


KINDS: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        *(
            plain,
            killed,
            interrupted_twice,
            extended,
            unfinished,
            overridden,
            disturbed,
        ),
        *(on_hosts, lost_host),
    )
}


def unpack(archive: Path, folder: Path) -> Path:
    folder.mkdir(parents=True)
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder


def race(folder: Path) -> None:
    """Races the tones' challenger against their baseline, and keeps the submission."""
    command = [
        sys.executable,
        "-m",
        "tfasr.cli",
        "record",
        "tones",
        "--records",
        str(RECORDS),
    ]
    command += [
        "--gin_file",
        str(RECORDS / "tones" / "challenger.gin"),
        "--shard_dir",
        str(SHARDS),
    ]
    subprocess.run([*command, "--run_dir", str(folder)], check=True)
    shutil.rmtree(RECORDS / "faster", ignore_errors=True)
    shutil.copytree(folder / "submission", RECORDS / "faster")


if __name__ == "__main__":
    for name in sys.argv[2:] or [*KINDS, "faster"]:
        if name == "faster":
            race(Path(sys.argv[1], name))
            continue

        KINDS[name](Path(sys.argv[1], name))
        archive = RECORDS / "studies" / f"{name}.tar.xz"
        archive.parent.mkdir(exist_ok=True)
        archive.write_bytes(pack(Path(sys.argv[1], name)))
        print(name, archive.stat().st_size)
