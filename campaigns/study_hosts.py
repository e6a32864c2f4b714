"""A study on several hosts gives the runs of one machine, also if everything is killed at random.

``python -m campaigns.study_hosts --out FOLDER --hosts 2 --kills 30``

Each host is a network namespace with its own address and its own Dask worker (root is needed;
``--loopback`` uses addresses 127.0.0.2, .3, ... instead). All connections are encrypted. The study
is trained on one machine first. Its losses, step by step, must be those on the hosts, and ``tfasr
verify`` must accept each study. With ``--kills``, the study, a Dask worker, its nanny, a training,
the scheduler or a whole host is killed by SIGKILL at random moments, and hosts come back late or in
time; studies follow each other until all kills are used. ``--demo`` trains the demo's recipes.
"""

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.tones import SHARDS, TONES_GIN
from tfasr.ledger.declared import STARTS_FILE
from tfasr.ledger.events import read_events

_PORT = 18786
_PATIENCE_S = 3600
_WAIT_FOR_HOST_S = 20
_TONES = f"""\
StudyConfig.experiments = ('two', 'four')
StudyConfig.seeds = SEEDS
StudyConfig.test = 'pairs'
StudyConfig.most_taken = 1.0
ExperimentConfig.gin_files = ({str(TONES_GIN)!r},)
two/ExperimentConfig.bindings = (
    'PipelineConfig.global_batch_size = 2', 'TrainingConfig.epochs = 4',
    'TrainingConfig.checkpoint_every_steps = 3')
four/ExperimentConfig.bindings = (
    'PipelineConfig.global_batch_size = 4', 'TrainingConfig.epochs = 6',
    'TrainingConfig.checkpoint_every_steps = 3')
"""
_DEMO = """\
StudyConfig.experiments = ('papers_recipe', 'fast_recipe')
StudyConfig.seeds = SEEDS
StudyConfig.test = 'pairs'
StudyConfig.most_taken = 1.0
StudyConfig.corpus = 'synthetic'
papers_recipe/ExperimentConfig.gin_files = ('paper_demo.gin',)
fast_recipe/ExperimentConfig.gin_files = ('fast/demo.gin', 'train/demo_race.gin')
"""
_CERTIFICATES = """\
set -e
openssl req -x509 -newkey rsa:2048 -nodes -days 30 -keyout ca.key -out ca.pem -subj /CN=campaign
openssl req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=host
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out cert.pem
"""


@dataclasses.dataclass
class Place:
    """Where a host's processes run."""

    address: str
    prefix: list[str]  # words before a command that is to run there
    worker: subprocess.Popen | None = None
    back_at_s: float = 0.0  # when a killed host comes back


class Hosts:
    """A scheduler and its workers' hosts."""

    def __init__(self, folder: Path, number: int, loopback: bool):
        self.folder = folder
        self.scheduler_process: subprocess.Popen | None = None
        self._loopback = loopback
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["sh", "-c", _CERTIFICATES], cwd=folder, check=True, capture_output=True
        )
        # Interfaces' names have at most 15 characters, and those of campaigns that run at
        # the same time must differ.
        self._bridge = f"tfasr{os.getpid() % 10000}"
        self.places = [self._place(index) for index in range(2, number + 2)]

    def _place(self, index: int) -> Place:
        cores = os.cpu_count() or 1
        # Each host has its own cores, as far as there are enough.
        pinned = ["taskset", "-c", str((index - 2) % cores)]
        if self._loopback:
            return Place(f"127.0.0.{index}", pinned)
        return Place(
            f"10.77.0.{index}", ["ip", "netns", "exec", self._name(index), *pinned]
        )

    def _name(self, index: int) -> str:
        return f"{self._bridge}-{index}"

    @property
    def scheduler(self) -> str:
        return f"tls://{'127.0.0.1' if self._loopback else '10.77.0.1'}:{_PORT}"

    @property
    def flags(self) -> list[str]:
        """The flags of ``tfasr study`` and, with hyphens, of Dask's commands."""
        files = {"tls_ca_file": "ca.pem", "tls_cert": "cert.pem", "tls_key": "key.pem"}
        return [
            w
            for name, file in files.items()
            for w in (f"--{name}", str(self.folder / file))
        ]

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """Makes the network and starts everything; ends and removes all of it."""
        try:
            if not self._loopback:
                self._make_network()
            self.start_scheduler()
            for place in self.places:
                self.start_worker(place)
            yield
        finally:
            for place in self.places:
                self.kill_host(place)
            kill_group(self.scheduler_process)
            if not self._loopback:
                self._remove_network()

    def _make_network(self) -> None:
        ip("link", "add", self._bridge, "type", "bridge")
        ip("addr", "add", "10.77.0.1/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        for index in range(2, len(self.places) + 2):
            name = self._name(index)
            inside = ["netns", "exec", name, "ip"]
            ip("netns", "add", name)
            outside = f"{self._bridge}v{index}"
            inner = ["peer", "name", "eth0", "netns", name]
            ip("link", "add", outside, "type", "veth", *inner)
            ip("link", "set", outside, "master", self._bridge, "up")
            ip(*inside, "addr", "add", f"10.77.0.{index}/24", "dev", "eth0")
            ip(*inside, "link", "set", "eth0", "up")
            ip(*inside, "link", "set", "lo", "up")

    def _remove_network(self) -> None:
        for index in range(2, len(self.places) + 2):
            ip("netns", "del", self._name(index), check=False)
        ip("link", "del", self._bridge, check=False)

    def start_scheduler(self) -> None:
        words = ["--host", self.scheduler, "--no-dashboard"]
        self.scheduler_process = self._dask("scheduler", [], words)

    def start_worker(self, place: Place) -> None:
        words = [self.scheduler, "--host", f"tls://{place.address}", "--nthreads", "1"]
        place.worker = self._dask("worker", place.prefix, [*words, "--no-dashboard"])

    def _dask(self, kind: str, prefix: list[str], words: list[str]) -> subprocess.Popen:
        flags = [
            word.replace("_", "-") if word.startswith("--") else word
            for word in self.flags
        ]
        command = [*prefix, sys.executable, "-m", "dask", kind, *words, *flags]
        with (self.folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )

    def kill_host(self, place: Place) -> None:
        """Kills a host's worker, nanny and training, as a power cut does."""
        if place.worker is None:
            return
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(place.worker.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.kill()

        kill_group(place.worker)

    def revive(self) -> None:
        """Starts again what has ended and is due."""
        if self.scheduler_process.poll() is not None:
            self.start_scheduler()
        for place in self.places:
            if place.worker.poll() is not None and time.monotonic() >= place.back_at_s:
                self.start_worker(place)


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


def kill_group(process: subprocess.Popen | None) -> None:
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Studies:
    """Studies of one gin file, on one machine and on hosts."""

    def __init__(self, folder: Path, demo: bool, seeds: int):
        self.folder = folder
        self.gin_file = folder / "study.gin"
        text = _DEMO if demo else _TONES
        self.gin_file.write_text(text.replace("SEEDS", str(tuple(range(1, seeds + 1)))))
        self._shards = [] if demo else ["--shard_dir", str(SHARDS)]

    def start(self, name: str, *more: str, core: int | None = None) -> subprocess.Popen:
        """Starts a study, or resumes it.

        Args:
            name: of the study's folder and of its log.
            more: further words of the command.
            core: the only core that it may use. A host has one, and threads round sums
                differently, so a study on one machine needs one for equal losses.
        """
        folder = self.folder / name
        command = [sys.executable, "-m", "tfasr.cli", "study"]
        command += ["--gin_file", str(self.gin_file), "--run_dir", str(folder)]
        command += [*self._shards, *more]

        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        if (folder / "study.json").exists():
            command.append("--resume")

        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

    def faults(self, name: str) -> list[str]:
        """Returns what is wrong with a finished study."""
        folder = self.folder / name
        command = [sys.executable, "-m", "tfasr.cli", "verify", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        faults = [
            line for line in done.stdout.splitlines() if line.startswith("FAILED")
        ]
        if done.returncode and not faults:
            faults.append(
                f"tfasr verify ended with {done.returncode}: {done.stderr[-300:]}"
            )

        wanted = losses(self.folder / "one")
        found = losses(folder)
        for run in sorted(wanted.keys() | found.keys()):
            if wanted.get(run) != found.get(run):
                faults.append(f"{run} has other losses than on one machine")

        return faults


def losses(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns each run's losses by step, without those of lost work."""
    curves = {}
    for path in sorted((folder / "runs").rglob("events.jsonl")):
        by_step: dict[int, float] = {}
        for event in read_events(path):
            if event["key"] == "session_start":
                kept = event["value"]["resumed_from_step"] or 0
                by_step = {step: loss for step, loss in by_step.items() if step <= kept}

            if event["key"] == "train_step":
                by_step[event["metadata"]["step"]] = event["value"]["loss"]

        curves[path.parent.relative_to(folder).as_posix()] = sorted(by_step.items())

    return curves


class Killer:
    """Kills processes of a study at random."""

    def __init__(self, hosts: Hosts, draw: random.Random):
        self.kills: Counter[str] = Counter()
        self._hosts = hosts
        self._draw = draw

    def kill(self, study: subprocess.Popen) -> str:
        """Kills something that runs; returns what it was, or ""."""
        kind = self._draw.choice(
            ["study", "worker", "nanny", "training", "scheduler", "host"]
        )
        place = self._draw.choice(self._hosts.places)
        alive = place.worker.poll() is None
        if kind == "study":
            os.kill(study.pid, signal.SIGKILL)
        elif kind == "scheduler":
            if self._hosts.scheduler_process.poll() is not None:
                return ""
            kill_group(self._hosts.scheduler_process)
        elif not alive:
            return ""
        elif kind == "host":
            self._hosts.kill_host(place)
            place.back_at_s = time.monotonic() + self._draw.uniform(
                0, 2 * _WAIT_FOR_HOST_S
            )
        elif not self._kill_process(kind, place):
            return ""

        self.kills[kind] += 1
        if kind in ("worker", "nanny", "host"):
            return f"{kind} of {place.address}"

        return kind

    def _kill_process(self, kind: str, place: Place) -> bool:
        """Kills a process of a host's tree: dask (the nanny), its worker, the worker's
        training.
        """
        with contextlib.suppress(psutil.Error):
            nanny = psutil.Process(place.worker.pid)
            if kind == "nanny":
                nanny.kill()
                place.worker.wait()
                return True

            for process in nanny.children(recursive=True):
                training = (
                    "train" in process.cmdline() and "--run_dir" in process.cmdline()
                )
                worker = "spawn_main" in " ".join(process.cmdline())
                if (kind == "training" and training) or (kind == "worker" and worker):
                    process.kill()
                    return True

        return False


def perform(
    studies: Studies, hosts: Hosts, name: str, killer: Killer | None, most: int
) -> float:
    """Does a study until it is finished; returns the seconds that it took."""
    flags = ["--scheduler", hosts.scheduler, *hosts.flags]
    flags += ["--wait_for_host", str(_WAIT_FOR_HOST_S)]
    began_s = time.monotonic()
    study = studies.start(name, *flags)
    draw = random.Random(name)
    next_s = time.monotonic() + draw.uniform(5, 40)
    while time.monotonic() - began_s < _PATIENCE_S:
        time.sleep(0.2)
        hosts.revive()
        if study.poll() is not None:
            if study.returncode == 0:
                return time.monotonic() - began_s
            study = studies.start(name, *flags)

        if (
            killer is not None
            and killer.kills.total() < most
            and time.monotonic() >= next_s
        ):
            next_s = time.monotonic() + draw.uniform(5, 40)
            what = killer.kill(study)
            if what:
                at_s = time.monotonic() - began_s
                print(
                    f"{name}: kill {killer.kills.total()} after {at_s:.0f} s: {what}",
                    flush=True,
                )

    study.kill()
    raise SystemExit(
        f"{name} did not end within {_PATIENCE_S} s; see {studies.folder}."
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.study_hosts", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="gets studies and logs")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1, help="of the random moments")
    parser.add_argument("--demo", action="store_true", help="train the demo's recipes")
    parser.add_argument("--loopback", action="store_true", help="no network namespaces")
    arguments = parser.parse_args()
    folder = arguments.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    studies = Studies(folder, arguments.demo, arguments.seeds)
    faults: list[str] = []

    began_s = time.monotonic()
    if studies.start("one", core=0).wait() != 0:
        raise SystemExit(f"The study on one machine failed: see {folder / 'one.log'}.")
    print(f"one machine: {time.monotonic() - began_s:.0f} s", flush=True)

    hosts = Hosts(folder / "network", arguments.hosts, arguments.loopback)
    with hosts.up():
        took_s = perform(studies, hosts, "hosts", None, 0)
        faults += [f"hosts: {fault}" for fault in studies.faults("hosts")]
        print(
            f"{arguments.hosts} hosts: {took_s:.0f} s, {len(faults)} faults", flush=True
        )
        killer = Killer(hosts, random.Random(arguments.seed))
        number = 0
        while killer.kills.total() < arguments.kills:
            number += 1
            name = f"killed-{arguments.seed}-{number}"
            shutil.rmtree(folder / name, ignore_errors=True)
            perform(studies, hosts, name, killer, arguments.kills)
            new = studies.faults(name)
            faults += [f"{name}: {fault}" for fault in new]
            again = sum(
                e["key"] == "abandoned"
                for e in read_events(folder / name / STARTS_FILE)
            )
            print(
                f"{name}: finished, {again} runs abandoned, {len(new)} faults",
                flush=True,
            )

    print(f"{killer.kills.total()} kills {dict(killer.kills)}: {len(faults)} faults")
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
