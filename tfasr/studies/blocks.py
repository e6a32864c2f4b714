"""Does a study's steps on its hosts, whatever happens to hosts and processes.

A block is all trainings of a seed, or another single step. One host does a whole block,
one step after the other. So what slows a host slows all experiments of a seed, and
their ratio stays what it was.

`perform.study` calls `perform` with the steps that `plan.study_steps` lists. The main
thread hands out blocks; a thread for each host asks its agent to start a step's process
and to look at it until it ends. What the study notes in starts.jsonl on the way is what
``tfasr verify`` compares with the runs' ledgers.
"""

import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfasr.errors import RunError, UsageError
from tfasr.kit.files import locked, make_folder
from tfasr.ledger.declared import LOST, STARTS_FILE, Seen, Starts
from tfasr.ledger.events import ledger_mark, read_events
from tfasr.studies.agent import Command, Look, StepError
from tfasr.studies.hosts import Cluster, Host, HostLostError, ThisMachine
from tfasr.studies.plan import ABANDONED_FOLDER, Step, finished, widths_path
from tfasr.studies.progress import Lap, StudyProgress, named_at, time_text
from tfasr.studies.quiet import QuietMachine
from tfasr.tta.run import load_run

# How often a step is looked at on a host of a cluster, and on this machine, where it
# costs no message; in seconds.
_LOOKS_EVERY_S = 0.5
_LOOKS_HERE_EVERY_S = 0.2

# How long a host rests between two blocks, in seconds: another study may take it then.
_RESTS_S = 1.0

# A training that has written nothing for so long, in seconds, may hang: a line says so.
_QUIET_S = 900.0

# A host on which so many trainings in a row failed gets no other block: its disk may be
# full, and every further training would fail too.
_FAILURES = 2

# How many lines of a failed step's log are shown, and how many of their characters.
_SHOWN_LINES = 3
_SHOWN_CHARACTERS = 600

# The most threads, one for each host. The pool starts one only when it is needed.
_MOST_THREADS = 10_000

log = logging.getLogger("tfasr")


@dataclass
class Block:
    """What one host does without a break: a seed's trainings, or another step.

    Attributes:
        steps: what it consists of.
        seed: of its trainings; None for another step.
        host: the host that has begun the trainings and must end them; "" for none.
        begun: the experiments that this host has begun.
        first: the experiment that was begun first; "" before any was.
        backwards: whether the last step comes first.
    """

    steps: list[Step]
    seed: int | None = None
    host: str = ""
    begun: set[str] = field(default_factory=set)
    first: str = ""
    backwards: bool = False

    @property
    def turns(self) -> list[Step]:
        """The steps in the order in which they are done."""
        if self.backwards:
            return self.steps[::-1]

        return self.steps


@dataclass
class History:
    """What earlier sessions of a study noted in starts.jsonl.

    Attributes:
        blocks: the seeds that a host has begun and not abandoned, without their steps.
        described: descriptions of hosts, by name.
        moves: where runs that were abandoned, and not begun since, belong.
    """

    blocks: dict[int, Block] = field(default_factory=dict)
    described: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    moves: dict[tuple[str, int], str] = field(default_factory=dict)


def history(folder: Path) -> History:
    """Reads which hosts have begun which trainings; empty for a new study.

    Args:
        folder: the study's, with its list of starts.
    """
    past = History()
    path = folder / STARTS_FILE

    if not path.exists():
        return past

    for event in read_events(path):
        value = event["value"]
        if event["key"] == "host":
            past.described.setdefault(value["host"], value["description"])
        elif event["key"] == "start":
            block = past.blocks.setdefault(value["seed"], Block([], value["seed"]))
            block.host = value.get("host", "")
            block.first = block.first or value["experiment"]
            block.begun.add(value["experiment"])
            past.moves.pop((value["experiment"], value["seed"]), None)

        elif event["key"] == "abandoned":
            past.blocks.pop(value["seed"], None)
            past.moves[value["experiment"], value["seed"]] = value["folder"]

    return past


def perform(
    steps: Sequence[Step],
    hosts: ThisMachine | Cluster | None = None,
    starts: Starts | None = None,
    *,
    quiet: QuietMachine | None = None,
    folder: Path | None = None,
    patience_s: float = 0.0,
) -> list[str]:
    """Does the steps that are not done yet; returns the names of those that failed.

    Args:
        steps: in the order in which a single host does them.
        hosts: who does them; by default this machine.
        starts: gets each training's start and end; None for a study without a sealed
            plan.
        quiet: has trainings wait for a quiet host, and disturbed runs trained again.
        folder: the study's, which a cluster needs.
        patience_s: how long a lost host is waited for before its seeds begin again
            elsewhere.

    Raises:
        RunError: if the cluster's scheduler is gone.
    """
    if hosts is None:
        hosts = ThisMachine()

    progress = StudyProgress({step.name: Lap(step.kind, step.alike) for step in steps})

    failed: list[str] = []
    with contextlib.closing(progress):
        # Each kind of steps needs the results of the kinds before it.
        for kind in dict.fromkeys(step.kind for step in steps):
            of_kind = [step for step in steps if step.kind == kind]
            if not isinstance(hosts, Cluster):
                work = _Work(of_kind, hosts, starts, progress, quiet)
            elif kind == "corpus":
                # Hosts are only asked for shards once these are prepared.
                work = _Work(of_kind, hosts.here, starts, progress, quiet)
            else:
                work = _ClusterWork(
                    of_kind,
                    hosts,
                    starts,
                    progress,
                    quiet,
                    folder=folder,
                    patience_s=patience_s,
                )

            failed += work.run()

    return failed


class _Work:
    """Steps of one kind, on one host.

    The main thread hands out blocks; a thread for each host does them. Ctrl-C reaches
    the main thread, which then lets the others end their steps.

    Args:
        steps: in the order in which they are done.
        hosts: who does them.
        starts: gets each training's start and end; None for a study without a sealed
            plan.
        progress: shows where the steps stand.
        quiet: as in `perform`.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        hosts: ThisMachine | Cluster,
        starts: Starts | None,
        progress: StudyProgress,
        quiet: QuietMachine | None,
    ):
        self._steps = steps
        self._quiet = quiet
        self._hosts = hosts
        self._starts = starts
        self._progress = progress
        # Set when every step must save its work and end.
        self._ending = threading.Event()
        # Names of steps.
        self._failed: list[str] = []

    def run(self) -> list[str]:
        """Does all blocks; returns the names of failed steps.

        Whatever a thread raises is raised here, after the other threads' steps have
        ended.
        """
        waiting = [block for block in self._blocks() if not self._is_done(block)]
        running: dict[Future, tuple[Host, Block]] = {}
        executor = ThreadPoolExecutor(
            max_workers=_MOST_THREADS, thread_name_prefix="host"
        )

        try:
            while waiting or running:
                self._hand_out(waiting, running, executor)
                if not running:
                    self._explain(waiting)
                    time.sleep(_LOOKS_EVERY_S)

                done, _ = wait(running, _LOOKS_EVERY_S, FIRST_COMPLETED)

                for future in done:
                    host, block = running.pop(future)
                    if not self._is_over(host, block, future):
                        waiting.insert(0, block)
        except BaseException:
            self._end(running)
            raise
        finally:
            # Threads that still ask new hosts are not waited for.
            executor.shutdown(wait=False, cancel_futures=True)

        return self._failed

    def _blocks(self) -> list[Block]:
        """Returns all blocks, done or not, in their order."""
        return [Block([step]) for step in self._steps]

    def _is_done(self, block: Block) -> bool:
        """Whether all steps of a block were done before; shows them as skipped if so.

        A disturbed run that a killed study left is set aside first: it has to be
        trained again.
        """
        if self._quiet is not None:
            for step in block.steps:
                self._quiet.set_aside(step)

        if not all(step.done() for step in block.steps):
            return False

        for step in block.steps:
            self._skip(step)

        return True

    def _skip(self, step: Step) -> None:
        """Shows a step as done. A training's time is known from its ledger."""
        seconds = None
        if step.run_dir is not None and finished(step.run_dir):
            seconds = load_run(step.run_dir).wall_s

        self._progress.skip(step.name, seconds)

    def _hand_out(
        self,
        waiting: list[Block],
        running: dict[Future, tuple[Host, Block]],
        executor: Executor,
    ) -> None:
        """Gives each free host a block.

        Args:
            waiting: the blocks that nobody does; those that are handed out are removed.
            running: gets the host and block of each new thread.
            executor: starts the threads.
        """
        usable = self._hosts.usable(executor)
        self._progress.hosts(len(usable))
        busy = {host.name for host, _ in running.values()}

        for host in usable:
            if host.name in busy or time.monotonic() < host.free_at_s:
                continue

            block = self._next_block(host, waiting)
            if block is not None:
                waiting.remove(block)
                running[executor.submit(self._do_block, host, block)] = (host, block)

    def _next_block(self, host: Host, waiting: Sequence[Block]) -> Block | None:
        """Returns the block that a free host does next; None if no block suits it.

        Args:
            host: the free host.
            waiting: the blocks that nobody does, in their order.
        """
        return next(iter(waiting), None)

    def _explain(self, waiting: Sequence[Block]) -> None:
        """Says why nothing is at work; this machine always has work."""

    def _is_over(self, host: Host, block: Block, future: Future) -> bool:
        """Whether a block needs no more work; raises what its thread has raised.

        Args:
            host: who did the block.
            block: what was done.
            future: the result of `_do_block`.
        """
        return future.result()

    def _end(self, running: Mapping[Future, tuple[Host, Block]]) -> None:
        """Lets all steps save their work and end; a second Ctrl-C ends them at once.

        Args:
            running: the hosts and blocks at work. Their threads see that the study ends
                and ask their steps to end too.
        """
        self._ending.set()
        try:
            wait(running)
        except BaseException:
            for host, _ in running.values():
                with contextlib.suppress(RunError):
                    host.ask("kill")

            raise

    def _do_block(self, host: Host, block: Block) -> bool:
        """Does a block's steps; returns False if it has to be tried again.

        A host's thread calls it.
        """
        for step in block.turns:
            if not self._ending.is_set():
                self._do(host, block, step)

        return True

    def _do(self, host: Host, block: Block, step: Step) -> None:
        """Does a step unless it is done; notes whether it failed.

        Args:
            host: who does it.
            block: what the step is a part of.
            step: what to do.

        Raises:
            HostLostError: if the host no longer answers. The step then waits again.
        """
        if step.done():
            self._skip(step)
            return

        self._progress.begin(step.name, host.name)
        reason = ""
        if step.needs is not None and not finished(step.needs):
            reason = f"{step.needs} is not finished"
        else:
            # Whatever happens, the step must not stay "at work" in the progress line.
            try:
                reason = self._tried(host, block, step)
            except BaseException:
                self._progress.again(step.name)
                raise

        if reason and self._ending.is_set():
            self._progress.again(step.name)
            return

        self._progress.end(step.name, reason)
        if reason:
            self._failed.append(step.name)

        # Only failures one after the other say that the host may be the reason.
        if step.kind == "train":
            if reason:
                host.failures += 1
            else:
                host.failures = 0

    def _tried(self, host: Host, block: Block, step: Step) -> str:
        """Does a step, a training when its host is quiet; returns why it failed, or "".

        The arguments are those of `_do`.
        """
        command = functools.partial(self._command, host, block, step)
        if self._quiet is None:
            return command()

        look = None
        if not host.is_local:
            look = functools.partial(host.ask, "taken")

        return self._quiet.trained(step, command, host.name, look, self._ending)

    def _command(self, host: Host, block: Block, step: Step) -> str:
        """Runs a step's process until it has ended; returns why it failed, or "".

        The arguments are those of `_do`.

        A study that was stopped for longer than the agent's lease finds its step ended.
        The step has saved its work then, and is started again.
        """
        look = None
        while look is None or (look.left and not step.done()):
            if self._ending.is_set():
                return "The study was ended."

            if look is not None:
                self._progress.say(
                    f"{host.name} lost contact with this study for some seconds: "
                    f"{step.name} saved its work, and continues."
                )

            try:
                words = [str(word) for word in step.words()]
            except UsageError as error:
                return str(error)

            command = Command(
                words=words,
                environment=dict(line.split("=", 1) for line in step.environment),
                log=str(step.log),
                run_dir=str(step.run_dir or ""),
            )

            try:
                if self._starts is not None and step.kind == "train":
                    look = self._train(host, block, step, command)
                else:
                    host.ask("start", command)
                    look = self._watch(host, step)
            except StepError as error:
                return str(error)
            except HostLostError:
                raise
            # Ctrl-C, or a defect: the process must not outlive the study.
            except BaseException:
                with contextlib.suppress(RunError):
                    host.ask("stop")

                raise

        return _outcome(step, look.exit_code)

    def _train(
        self, host: Host, block: Block, step: Step, command: Command
    ) -> Look | None:
        """Runs a training and notes its start and end.

        The start is noted before the process begins, since the run's ledger names that
        line (`declared`). Between the two, `host.ask("start")` refuses a start that was
        noted too long ago.

        Returns:
            The last look at the process; None if it was not started.

        Raises:
            HostLostError: if the host no longer answers, which is noted too.
            StepError: if the process can't be started.
        """
        run = (step.alike, step.seed)
        ready = self._ready(host, step)
        if ready is None:
            return None

        declared = self._starts.start(*run, _seen(host, ready))
        block.host = host.name
        block.first = block.first or step.alike
        block.begun.add(step.alike)
        command = Command(
            words=command.words,
            environment={**command.environment, **declared},
            log=command.log,
            run_dir=command.run_dir,
        )

        try:
            # Only a remote agent may get the request long after the study has sent it.
            noted = None if host.is_local else ready.clock
            if not host.ask("start", command, noted):
                self._starts.end(*run, _seen(host, ready), None)
                return None

            look = self._watch(
                host, step, lambda first: self._starts.begun(*run, first)
            )
        except HostLostError:
            self._starts.lost(*run, host.name)
            raise
        except StepError:
            self._starts.end(*run, _seen(host, ready), None)
            raise

        self._starts.end(*run, _seen(host, look), look.exit_code)

        return look

    def _ready(self, host: Host, step: Step) -> Look | None:
        """Waits until a run can be started there; None if the study ends before.

        A training of an earlier session may still save its work: it holds the run's
        lock.

        Args:
            host: where to start it.
            step: the run's training.
        """
        lock = "" if host.is_local else str(_lock_file(step))
        while not self._ending.is_set():
            ready = host.ask("ready", str(step.run_dir), lock)
            if not ready.busy:
                return ready

            self._hosts.say_once(f"{step.name} waits: {ready.busy}.")
            self._ending.wait(_LOOKS_EVERY_S)

        return None

    def _watch(
        self, host: Host, step: Step, on_begun: Callable[[Seen], None] | None = None
    ) -> Look:
        """Waits for a process to end, and asks it to if the study is ended.

        Args:
            host: where it runs.
            step: whose process it is.
            on_begun: is called once its run has a trained step.
        """
        told_to_end = False
        begun = False
        every_s = _LOOKS_HERE_EVERY_S if host.is_local else _LOOKS_EVERY_S

        while True:
            look = host.ask("look")
            self._progress.watch(step.name, look.progress)
            if on_begun is not None and look.mark is not None and not begun:
                begun = True
                on_begun(_seen(host, look))

            if look.exit_code is not None:
                return look

            if look.quiet_s > _QUIET_S:
                self._hosts.say_once(
                    f"{named_at(step.name, host.name)} has written nothing for "
                    f"{time_text(_QUIET_S)}. If it hangs, end its process {look.pid} "
                    "there; --resume continues it."
                )

            if not self._ending.is_set():
                self._ending.wait(every_s)
                continue

            if not told_to_end:
                told_to_end = True
                host.ask("stop")

            time.sleep(_LOOKS_HERE_EVERY_S)


class _ClusterWork(_Work):
    """Steps of one kind, on hosts of a Dask cluster that may come and go.

    A host that has begun a seed's trainings ends them. If it is lost and does not come
    back, they begin again on another host, once the locks of its runs show that nothing
    writes them any more.

    Its methods run in the main thread, except `_do_block` and what it calls, which each
    host's thread runs: `_mutex` guards what these share.

    Args:
        args: those of `_Work`.
        folder: the study's.
        patience_s: how long a lost host is waited for, in seconds.
    """

    def __init__(self, *args: Any, folder: Path, patience_s: float):
        super().__init__(*args)
        self._folder = folder
        self._patience_s = patience_s
        self._mutex = threading.Lock()
        # Hosts that this session has written into starts.jsonl.
        self._noted: set[str] = set()
        # How often a host trained the experiments in their order, and in reverse.
        self._orders: Counter[tuple[str, bool]] = Counter()

    def _blocks(self) -> list[Block]:
        """Returns the blocks with what earlier sessions noted about them.

        Experiments are in alphabetical order here, so that the order in a block can be
        derived from the experiment that began first.
        """
        blocks: dict[Any, Block] = {}
        past = history(self._folder).blocks

        for step in self._steps:
            if step.kind != "train":
                blocks[step.name] = Block([step])
                continue

            block = blocks.setdefault(
                step.seed, past.get(step.seed) or Block([], step.seed)
            )
            block.steps.append(step)

        for block in blocks.values():
            block.steps.sort(key=lambda step: step.alike)
            if block.first:
                self._orders[block.host, block.first != block.steps[0].alike] += 1

        return list(blocks.values())

    def _next_block(self, host: Host, waiting: Sequence[Block]) -> Block | None:
        """Returns the host's own block, else a new one, else one whose host is lost.

        A host on which trainings fail one after the other gets none but its own.
        """
        for block in waiting:
            if block.host == host.name:
                return block

        if host.failures >= _FAILURES:
            self._hosts.say_once(
                f"{host.name} gets no more work, since {_FAILURES} trainings in a row "
                "failed there: see their logs."
            )
            return None

        for block in waiting:
            if not block.host:
                return block

        for block in waiting:
            if self._hosts.missing_s(block.host) >= self._patience_s and self._abandon(
                block
            ):
                return block

        return None

    def _explain(self, waiting: Sequence[Block]) -> None:
        """Says once what the study waits for.

        Raises:
            RunError: if trainings fail on all hosts.
        """
        hosts = self._hosts.present
        if hosts and all(host.failures >= _FAILURES for host in hosts):
            names = ", ".join(host.name for host in hosts)
            raise RunError(
                f"Trainings must succeed on some host, but {_FAILURES} in a row failed "
                f"on each of {names}: see their logs. --resume tries them again."
            )

        if not hosts:
            if self._hosts.joining:
                return

            self._hosts.say_once(
                f"The study waits for hosts: start dask worker {self._hosts.address} "
                "on them."
            )
            return

        missing = sorted({block.host for block in waiting})
        if all(name and self._hosts.missing_s(name) for name in missing):
            self._hosts.say_once(
                f"The study waits for {', '.join(missing)}, which began the remaining "
                f"seeds. After {time_text(self._patience_s)} they begin again on "
                "another host."
            )

    def _is_over(self, host: Host, block: Block, future: Future) -> bool:
        """Whether a block needs no more work; False if its host was lost meanwhile.

        What the block's thread raised otherwise is raised here.
        """
        try:
            return future.result()
        except HostLostError as error:
            self._hosts.lose(host)
            text = f"{error}."
            if block.host:
                text += (
                    f" Its training saves its work and ends. Seed {block.seed} goes on "
                    f"there if the host is back within {time_text(self._patience_s)}, "
                    "else it begins again on another host."
                )

            self._progress.say(text)
            return False

    def _do_block(self, host: Host, block: Block) -> bool:
        """Does a block on a host that it reserves; False if it must be tried again.

        The host rests for a moment afterwards, so that another study can reserve it.
        """
        busy = host.ask("reserve")
        if busy:
            self._hosts.say_once(f"{host.name} is waited for: {busy}.")
            host.free_at_s = time.monotonic() + _LOOKS_EVERY_S
            return False

        try:
            if block.seed is not None:
                self._note(host)
                self._put_in_order(host, block)

            return super()._do_block(host, block)
        finally:
            host.free_at_s = time.monotonic() + _RESTS_S
            with contextlib.suppress(HostLostError):
                host.ask("release")

    def _note(self, host: Host) -> None:
        """Writes a host's description into starts.jsonl before its first training."""
        self._hosts.use(host)
        with self._mutex:
            if self._starts is not None and host.name not in self._noted:
                self._noted.add(host.name)
                self._starts.host(
                    host.name, host.report.description, host.clock_ahead_s
                )

    def _put_in_order(self, host: Host, block: Block) -> None:
        """Chooses a block's order: each is equally often on a host, then on all.

        Of two experiments, the one that always trains first would profit or suffer from
        whatever a host does at the beginning of a block. A block that was begun before
        keeps its order.
        """
        with self._mutex:
            if block.first:
                block.backwards = block.first != block.steps[0].alike
                return

            forwards = (self._orders[host.name, False], self._total(False))
            backwards = (self._orders[host.name, True], self._total(True))
            block.backwards = backwards < forwards
            self._orders[host.name, block.backwards] += 1
            block.first = block.turns[0].alike

    def _total(self, way: bool) -> int:
        """Returns how often all hosts together had an order; True is the reverse."""
        return sum(count for (_, order), count in self._orders.items() if order == way)

    def _abandon(self, block: Block) -> bool:
        """Moves the runs of a lost host aside; False if one is still being written.

        All locks of the seed's runs are held meanwhile, so no training of the lost host
        can go on. Each run is noted before it is moved: `finish_moves` ends what a
        killed study began.
        """
        with contextlib.ExitStack() as stack:
            for step in block.steps:
                try:
                    stack.enter_context(locked(_lock_file(step), "held"))
                except UsageError:
                    self._hosts.say_once(
                        f"{step.name} waits: {block.host} doesn't answer, but its "
                        "training still holds the lock of its run."
                    )
                    return False

            for step in block.steps:
                if step.alike not in block.begun:
                    continue

                place = _free_place(self._folder, step)

                mark = None
                with contextlib.suppress(UsageError, OSError):
                    mark = ledger_mark(step.run_dir)

                if self._starts is not None:
                    run = (step.alike, step.seed, block.host)
                    self._starts.abandoned(*run, place, mark, LOST)

                move_aside(self._folder, step, place)
                self._progress.again(step.name)

        self._progress.say(
            f"Seed {block.seed} begins again on another host: {block.host} did not "
            f"come back. Its runs are kept in {self._folder / ABANDONED_FOLDER}."
        )
        block.host = ""
        block.first = ""
        block.begun = set()

        return True


def finish_moves(folder: Path, steps: Sequence[Step]) -> None:
    """Moves the runs aside that a killed study had abandoned, but not moved yet.

    Args:
        folder: the study's.
        steps: all of its steps.
    """
    moves = history(folder).moves
    for step in steps:
        if step.kind != "train":
            continue

        place = moves.get((step.alike, step.seed))
        if place is None or not step.run_dir.exists():
            continue

        if not (folder / place).exists():
            move_aside(folder, step, place)


def move_aside(folder: Path, step: Step, place: str) -> None:
    """Moves a run and what was measured with it; the run itself comes last.

    So a run that is still in its place shows that the move isn't over.

    Args:
        folder: the study's.
        step: the run's training.
        place: the run's new path within the study's folder.
    """
    make_folder((folder / place).parent)
    name = step.log.stem
    # Beam widths may have been timed with this run, and are timed again.
    measured = {
        "scores": folder / "scores" / name,
        "widths": widths_path(folder).parent,
    }

    for kind, path in measured.items():
        if path.exists():
            path.rename(folder / f"{place}-{kind}")

    if step.run_dir.exists():
        step.run_dir.rename(folder / place)


def _free_place(folder: Path, step: Step) -> str:
    """Returns a new name in ``abandoned/`` for a run, perhaps not its first there.

    Args:
        folder: the study's.
        step: the run's training, whose log is named after the run.
    """
    number = 1
    while (folder / ABANDONED_FOLDER / f"{step.log.stem}-{number}").exists():
        number += 1

    return f"{ABANDONED_FOLDER}/{step.log.stem}-{number}"


def _lock_file(step: Step) -> Path:
    """Returns the file that keeps a run from being trained twice, on all hosts.

    It is next to the log, not in the run's folder, which moves when the run is
    abandoned.
    """
    return step.log.with_suffix(".lock").absolute()


def _seen(host: Host, look: Look) -> Seen:
    """Returns a run's mark and its host's clocks, for a line of the list of starts.

    Args:
        host: where the run is trained.
        look: at one moment.
    """
    return Seen(look.mark, host.name, look.clock.time_ms, look.clock.mono_s)


def _outcome(step: Step, exit_code: int) -> str:
    """Returns why a step failed, with the end of its log, or "" if it is done.

    Args:
        step: whose process has ended.
        exit_code: of the process; a negative one is the number of a signal.
    """
    # A process that was killed may have done all of its work before.
    if exit_code <= 0 and step.done():
        return ""

    if exit_code == 0:
        return f"It succeeded but left no result. Its log: {step.log}"

    text = ""
    if step.log.is_file():
        text = step.log.read_text(encoding="utf-8", errors="replace")

    lines = text.strip().splitlines()[-_SHOWN_LINES:]
    last = " ".join(line.strip() for line in lines)[-_SHOWN_CHARACTERS:]
    if not last:
        last = "its log is empty"

    return f"It ended with exit code {exit_code}: {last}"
