"""The hosts on which a study trains: this machine, or those of a Dask cluster.

A host is an address: several workers of one address are one host. Before it trains
anything, a worker must have the study's software, see its files, and see that the study
holds its lock.

`blocks.perform` asks `ThisMachine.usable` or `Cluster.usable` for hosts, and talks to
each through `Host.ask`. Which steps a host does is decided there, not here.
"""

import fcntl
import itertools
import logging
import math
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr._version import __version__
from tfasr.data.manifest import INDEX_FILE, read_index
from tfasr.errors import RunError, UsageError
from tfasr.kit import gin
from tfasr.kit.files import HELD, LOCK_FILE
from tfasr.ledger.declared import canonical, code_hash, sha256
from tfasr.studies.agent import LEASE_S, Agent
from tfasr.studies.plan import Plan
from tfasr.telemetry.machine import text
from tfasr.telemetry.system import describe_system

if TYPE_CHECKING:
    from distributed import Client

# A worker must describe its host, and then start an agent, within this time each. All
# times here are in seconds.
_JOINS_WITHIN_S = 60.0

# How often the scheduler is asked for workers of new hosts.
_LISTED_EVERY_S = 1.0

# A host that was refused is asked again after so long: it may have mounted the folder
# by then.
_ASKED_AGAIN_S = 10.0

# A client reconnects by itself if the scheduler was only out of reach for a moment.
_SCHEDULER_BACK_WITHIN_S = 15.0

# Machines of one kind report slightly different sizes: a fraction of the larger one.
_MEMORY_ALIKE = 0.03

# A clock that is further off is worth a warning.
_CLOCK_OFF_S = 2.0

# How often a host is asked for its clock; the fastest answer counts.
_CLOCK_LOOKS = 3

log = logging.getLogger("tfasr")


class HostLostError(RunError):
    """A host doesn't answer any more.

    Its training, if it still runs, ends by itself: see `tfasr.studies.agent`.
    """


@dataclass(frozen=True)
class Request:
    """What every host of a study must have. It is pickled and sent to each worker.

    Attributes:
        folder: the study's, whose lock the study holds.
        experiments: each one's gin files and bindings, and the hash of the statements
            in them, by its name.
        shards: the content hash of each split, by its folder.
        software: versions, as `software` returns them.
    """

    folder: str
    experiments: Mapping[str, tuple[Sequence[str], Sequence[str], str]]
    shards: Mapping[str, str]
    software: Mapping[str, str]


@dataclass(frozen=True)
class Report:
    """What a host says about itself.

    Attributes:
        problems: why it can't train; empty if it can.
        description: what `describe_system` returned there.
        boot: names the machine since it was started; containers of one machine share
            it.
    """

    problems: Sequence[str]
    description: Mapping[str, Any]
    boot: str


def software() -> dict[str, str]:
    """Returns versions of what a training's result and speed depend on, by name.

    Python counts with its minor version alone; of tfasr also the code is compared,
    since a checkout may have changes.
    """
    packages = describe_system()["packages"]
    python = ".".join(map(str, sys.version_info[:2]))

    return {
        **packages,
        "tfasr": __version__,
        "tfasr's code": code_hash()[:16],
        "Python": python,
    }


def request(plan: Plan, folder: Path, shard_dir: Path) -> Request:
    """Returns what hosts must have to train a study.

    Args:
        plan: the study's.
        folder: the study's.
        shard_dir: the prepared splits.
    """
    splits = sorted(path.parent for path in shard_dir.glob(f"*/{INDEX_FILE}"))
    runs = {run.experiment: run for run in plan.runs}

    return Request(
        folder=str(folder.resolve()),
        experiments={
            name: (
                run.gin_files,
                run.bindings,
                _statements(run.gin_files, run.bindings),
            )
            for name, run in runs.items()
        },
        shards={
            str(split.resolve()): read_index(split)["content_hash"] for split in splits
        },
        software=software(),
    )


def _statements(gin_files: Sequence[str], bindings: Sequence[str]) -> str:
    """Returns a hash of all statements of gin files and bindings.

    The statements of included files count too, so that hosts with other presets are
    found.
    """
    return sha256(canonical(gin.statements(gin_files, bindings)))


def inspect_host(wanted: Request) -> Report:
    """Describes this host and says what it lacks; called on a worker.

    Args:
        wanted: what the study's own machine has.

    Returns:
        A report whose problems each name a remedy; without problems the host may train.
    """
    problems = []
    here = software()
    other = [
        f"{name} {here.get(name)} instead of {version}"
        for name, version in wanted.software.items()
        if here.get(name) != version
    ]
    if other:
        problems.append(f"it has {', '.join(other)}: install the same software")

    for name, (gin_files, bindings, statements) in wanted.experiments.items():
        try:
            if _statements(gin_files, bindings) != statements:
                files = ", ".join(gin_files)
                problems.append(
                    f"it reads other settings of {name} in {files} than the study"
                )
        except UsageError as error:
            problems.append(
                f"it can't read the settings of {name}: {error}".removesuffix(".")
            )

    for split, content_hash in wanted.shards.items():
        with suppress(UsageError, OSError, LookupError):
            if read_index(Path(split))["content_hash"] == content_hash:
                continue

        problems.append(f"it doesn't have the shards in {split}: mount them there")

    problems += lock_problems(Path(wanted.folder))
    boot = text(Path("/proc/sys/kernel/random/boot_id"))

    return Report(problems, describe_system(), boot)


def lock_problems(folder: Path) -> list[str]:
    """Returns why a folder's lock doesn't protect it on this host; [] if it does.

    The study holds the lock of its folder when this is called. A host that can take
    that lock too has a file system whose locks hold on one machine alone, or sees
    another folder of that name. Either way two hosts could write one run.
    """
    if not folder.is_dir():
        return [f"it doesn't see the study's folder {folder}: mount it there"]

    shared = f"Use a file system whose locks hold on all hosts for {folder}"

    try:
        with (folder / LOCK_FILE).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            return []

        if isinstance(error, FileNotFoundError):
            return [
                f"it sees another folder as {folder}, without the study's files: mount "
                "it"
            ]

        return [f"its file system has no locks ({error.strerror}). {shared}"]

    return [f"it doesn't see the lock that the study holds. {shared}"]


def unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns in which respects two described hosts would train at different speeds.

    Args:
        one: what `describe_system` returned on a host.
        other: the same of a host that it is compared with.

    Returns:
        Texts such as "cores 8 instead of 16"; [] if the hosts are alike.
    """
    names = ("processor", "cores", "gpus")
    lines = [
        f"{name} {one.get(name)} instead of {other.get(name)}"
        for name in names
        if one.get(name) != other.get(name)
    ]

    sizes = [each.get("memory_bytes") or 0 for each in (one, other)]
    if abs(sizes[0] - sizes[1]) > _MEMORY_ALIKE * max(sizes):
        texts = [f"{size / 2**30:.0f} GiB" for size in sizes]
        lines.append(f"memory {texts[0]} instead of {texts[1]}")

    limits = [
        (each.get("surroundings") or {}).get("cpu_limit") for each in (one, other)
    ]
    if limits[0] != limits[1]:
        lines.append(f"a limit of {limits[0]} processors instead of {limits[1]}")

    return lines


class Host:
    """A host that does steps for a study.

    Args:
        agent: an `Agent` of this process, or Dask's actor of one.
        name: its address; "" for the study's own machine.
        report: what `inspect_host` returned; None for the study's own machine.

    Attributes:
        clock_ahead_s: by how much its wall clock is ahead of the study's machine.
        failures: how many trainings in a row failed there.
        free_at_s: when it may get another block, by the study's monotonic clock.
    """

    def __init__(self, agent: Any, name: str = "", report: Report | None = None):
        self.name = name
        self.report = report
        self.clock_ahead_s = 0.0
        self.failures = 0
        self.free_at_s = 0.0
        self._agent = agent

    @property
    def is_local(self) -> bool:
        """Whether it is the study's own machine, which needs no locks."""
        return not self.name

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the host's agent and returns its result.

        Raises:
            HostLostError: if a host of a cluster does not answer within `LEASE_S`.
            StepError: if the agent can't start a step.
        """
        if self.is_local:
            return getattr(self._agent, method)(*arguments)

        try:
            return getattr(self._agent, method)(*arguments).result(timeout=LEASE_S)
        except (RunError, UsageError):
            raise
        # Dask raises many kinds for a lost worker.
        except Exception as error:
            raise HostLostError(
                f"{self.name} doesn't answer ({type(error).__name__})"
            ) from error


def clock_ahead_s(host: Host) -> float:
    """Returns by how many seconds a host's wall clock is ahead of this machine's.

    A host reads its clock at some moment between the question and the answer, so the
    error is at most half of the time that it takes to answer. On a busy host that may
    be seconds; so it is asked a few times, and its fastest answer counts.
    """
    fastest_s = math.inf
    ahead_s = 0.0

    for _ in range(_CLOCK_LOOKS):
        asked_s = time.time()
        look = host.ask("look")
        took_s = time.time() - asked_s

        if took_s < fastest_s:
            fastest_s = took_s
            ahead_s = look.clock.time_ms / 1000 - (asked_s + took_s / 2)

    return round(ahead_s, 3)


class ThisMachine:
    """The study's own machine as its only host, with the methods of `Cluster`.

    Args:
        held: file descriptors of locks that each step's process inherits.
    """

    def __init__(self, held: Sequence[int] = ()):
        self._host = Host(Agent(held=held))

    def usable(self, executor: Executor) -> list[Host]:
        """Returns the machine, which can always train."""
        return [self._host]

    def use(self, host: Host) -> None:
        """Does nothing: the machine stays the same one."""

    def lose(self, host: Host) -> None:
        """Can't happen: the study ends with its machine."""
        raise AssertionError("the study's own machine can't be lost")

    def say_once(self, sentence: str) -> None:
        """Logs a sentence."""
        log.warning("%s", sentence)


class Cluster:
    """The hosts of a Dask cluster, which may come and go.

    Args:
        client: is connected to the scheduler.
        here: the study's own machine, which prepares what all hosts need.
        wanted: returns what hosts must have; called once that is prepared.
        alike: whether all hosts must be of one kind.
        known: descriptions of hosts that the study used before, by name.
    """

    def __init__(
        self,
        client: "Client",
        here: ThisMachine,
        wanted: Callable[[], Request],
        *,
        alike: bool,
        known: Mapping[str, Mapping[str, Any]],
    ):
        self.here = here
        self._client = client
        self._wanted = wanted
        self._alike = alike
        self._known = dict(known)
        self._request: Request | None = None
        # By name: hosts that may train, and answers of those that are being asked.
        self._hosts: dict[str, Host] = {}
        self._joining: dict[str, Future] = {}
        # By name: when a host was last asked what it has, and last there before it was
        # lost.
        self._asked_at_s: dict[str, float] = {}
        self._seen_s: dict[str, float] = {}
        self._said: set[str] = set()

        # When the scheduler was last asked, and when it last answered.
        self._listed_s = 0.0
        self._answered_s = time.monotonic()

        self._began_s = time.monotonic()
        self._numbers = itertools.count()

    @property
    def address(self) -> str:
        """The scheduler's address, such as "tls://10.0.0.1:8786"."""
        return self._client.scheduler.address

    @property
    def present(self) -> list[Host]:
        """The hosts that answer and have what they need."""
        return list(self._hosts.values())

    @property
    def joining(self) -> bool:
        """Whether a host is being asked what it has."""
        return bool(self._joining)

    def missing_s(self, name: str) -> float:
        """Returns the seconds since a host's last answer; 0.0 while it is connected."""
        if name in self._hosts:
            return 0.0

        return time.monotonic() - self._seen_s.get(name, self._began_s)

    def usable(self, executor: Executor) -> list[Host]:
        """Returns the hosts that may train now; ``executor`` asks new ones.

        This is called every half a second. Every second it looks for workers of new
        hosts. A host that was refused is asked again after a while, since it may have
        what it needs by then.

        Raises:
            RunError: if the scheduler is gone.
        """
        if self._request is None:
            self._request = self._wanted()

        now_s = time.monotonic()
        if now_s - self._listed_s >= _LISTED_EVERY_S:
            self._listed_s = now_s
            for name, address in self._listed().items():
                waits = now_s < self._asked_at_s.get(name, 0.0) + _ASKED_AGAIN_S
                if name not in self._hosts and name not in self._joining and not waits:
                    self._asked_at_s[name] = now_s
                    self._joining[name] = executor.submit(self._join, name, address)

        self._welcome()
        if not self._alike or not self._hosts:
            return list(self._hosts.values())

        if not self._known:
            if self._joining and now_s - self._began_s < _JOINS_WITHIN_S:
                # The most frequent kind is chosen once all hosts have answered.
                return []

            self._choose_kind()

        return [host for host in self._hosts.values() if self._is_alike(host)]

    def use(self, host: Host) -> None:
        """Notes that a host trains for the study: it must stay the same machine."""
        self._known.setdefault(host.name, host.report.description)

    def lose(self, host: Host) -> None:
        """Forgets a host that doesn't answer; its worker may join again."""
        if self._hosts.get(host.name) is host:
            del self._hosts[host.name]
            self._seen_s[host.name] = time.monotonic()

    def say_once(self, sentence: str) -> None:
        """Logs a sentence, unless it was logged before."""
        if sentence not in self._said:
            self._said.add(sentence)
            log.warning("%s", sentence)

    def _listed(self) -> dict[str, str]:
        """Returns the address of one worker of each host, by the host's name.

        The result is {} while the client tries to reach the scheduler again.

        Raises:
            RunError: if the scheduler is gone.
        """
        try:
            addresses = sorted(self._client.nthreads())
        # Dask raises many kinds while it is not connected.
        except Exception as error:
            silent_s = time.monotonic() - self._answered_s
            if self._client.status != "closed" and silent_s < _SCHEDULER_BACK_WITHIN_S:
                return {}

            raise RunError(
                "The Dask scheduler must run until the study ends, but it is gone "
                f"({type(error).__name__}). Its workers end, and their trainings save "
                "their work. Start scheduler and workers again, and continue with "
                "--resume."
            ) from error

        self._answered_s = time.monotonic()

        listed: dict[str, str] = {}
        for address in addresses:
            listed.setdefault(_host_of(address), address)

        return listed

    def _join(self, name: str, address: str) -> Host:
        """Inspects a worker and starts an agent in it.

        It runs in a thread, since a slow host must not keep the others waiting.

        Args:
            name: the host's.
            address: one of its workers'.

        Raises:
            UsageError: with the reason, if the host can't train for this study.
        """
        # Both calls must run on this worker and on no other. A result that Dask had
        # cached by the same arguments ("pure") would be of another moment.
        options = {"workers": [address], "allow_other_workers": False, "pure": False}
        key = f"{next(self._numbers)}-{uuid.uuid4().hex}"
        inspected = self._client.submit(
            inspect_host, self._request, key=f"inspect-{key}", **options
        )
        report = inspected.result(timeout=_JOINS_WITHIN_S)
        if report.problems:
            raise UsageError("; ".join(report.problems))

        # A host that has trained for the study must be the same machine.
        known = self._known.get(name, report.description)
        other = unlike(report.description, known)
        if other:
            raise UsageError(
                "it came back as another machine, so its runs can't be continued there "
                f"({'; '.join(other)}). Give that machine another address"
            )

        agent = self._client.submit(
            Agent, name, (), LEASE_S, key=f"agent-{key}", actor=True, **options
        )
        host = Host(agent.result(timeout=_JOINS_WITHIN_S), name, report)
        host.clock_ahead_s = clock_ahead_s(host)

        return host

    def _welcome(self) -> None:
        """Takes hosts that have answered; says of others why they can't train.

        It is called in the main thread, which alone changes the list of hosts.
        """
        for name, future in list(self._joining.items()):
            if not future.done():
                continue

            del self._joining[name]
            try:
                host = future.result()
            # A worker with another version of tfasr, or Dask itself, may raise anything.
            except Exception as error:
                cause = str(error) if isinstance(error, UsageError) else _short(error)
                self.say_once(f"The host {name} can't train for this study: {cause}.")
                continue

            self._hosts[name] = host
            if abs(host.clock_ahead_s) > _CLOCK_OFF_S:
                self.say_once(
                    f"The clock of {name} is {host.clock_ahead_s:+.0f} s off this "
                    "machine's. Its runs state times of that clock; durations don't "
                    "depend on it."
                )

            self._warn_of_same_machine(host)

    def _warn_of_same_machine(self, host: Host) -> None:
        """Warns if a host is one machine with another host, as containers may be."""
        boot = host.report.boot
        others = [other for other in self._hosts.values() if other is not host]
        shared = sorted(
            other.name for other in others if boot and other.report.boot == boot
        )

        if shared:
            self.say_once(
                f"{host.name} and {shared[0]} are one machine: runs there slow each "
                "other down. Start one worker a machine."
            )

    def _choose_kind(self) -> None:
        """Chooses one of the most frequent kind of hosts, which others must be like.

        Among equally frequent kinds, the one whose host joined first is chosen.
        """
        descriptions = {
            name: host.report.description for name, host in self._hosts.items()
        }
        alike = {
            name: sum(not unlike(other, one) for other in descriptions.values())
            for name, one in descriptions.items()
        }
        name = max(alike, key=alike.get)
        self._known[name] = descriptions[name]

    def _is_alike(self, host: Host) -> bool:
        """Returns whether a host is of the study's kind; says once why it isn't."""
        name, description = next(iter(self._known.items()))
        other = unlike(host.report.description, description)
        if other:
            self.say_once(
                f"The host {host.name} can't train for this study: StudyConfig.test = "
                f"'groups' needs hosts like {name}, but it has {'; '.join(other)}. Use "
                "hosts of one kind, or begin a study with StudyConfig.test = 'pairs'."
            )

        return not other


def _host_of(address: str) -> str:
    """Returns the host of a worker's address.

    >>> _host_of("tls://10.0.0.7:41233"), _host_of("tcp://[::1]:41233")
    ('10.0.0.7', '::1')
    """
    return address.rpartition("://")[2].rpartition(":")[0].strip("[]")


def _short(error: BaseException) -> str:
    """Returns an error of any kind in one line of at most some 300 characters.

    >>> _short(KeyError("a"))
    "KeyError: 'a'"
    """
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}".removesuffix(": ")
