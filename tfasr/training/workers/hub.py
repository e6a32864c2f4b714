"""The chief's list of workers that train in rounds: members, their blocks and results.

The chief opens a segment of an epoch's batches for all members. Each trains on its
share of them, block by block, and sends how its weights changed. With "local" exchange,
a segment is one block, and its changes are averaged when all have arrived. With
"asynchronous", it lasts until the next checkpoint or the epoch's end, and every change
is added when it arrives.

The chief trains too, in the thread of its training loop, through `Hub`'s public methods
(`tfasr.training.workers.rounds.RoundStep`). Each other worker is served by a thread of
the gRPC server, in `Hub._attend`. One condition guards everything that they share.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import grpc
import numpy as np

from tfasr.cluster.description import Cluster
from tfasr.cluster.stream import (
    ACCEPTED,
    Arrays,
    ChiefPort,
    Message,
    Spec,
    assembled,
    pieces,
    spec_of,
)
from tfasr.data.batches import Share
from tfasr.errors import RunError
from tfasr.ledger.schema import WorkerJoined, WorkerLate, WorkerLeft

log = logging.getLogger("tfasr")

# When the chief ends, it waits this long, so that workers still connecting learn the
# reason.
_LINGER_S = 3.0
# How often the chief looks whether a member is late.
_LOOK_S = 0.2
# What a delivery adds up over its steps, see `tfasr.training.step.StepResult`.
COUNTED = ("audio_s", "frames", "padded_frames")
TIMED = ("input_wait_s", "compile_s", "train_s")
SUMMED = (*COUNTED, *TIMED)
# Of seconds or frames, far more than any utterance has.
_MOST_PER_UTTERANCE = 10**6
# What `Hub.settle` returns while the chief has more blocks to train.
NOT_AT_END = -1


@dataclass(frozen=True)
class Block:
    """Consecutive batches of an epoch, of which a member trains on its share."""

    segment: int
    epoch: int
    step: int  # its first batch's number in the epoch, from 0
    steps: int
    share: Share
    version: int  # of the weights that it begins with


@dataclass(frozen=True)
class Delivery:
    """The result of a member's training on a block."""

    rank: int
    steps: int  # fewer than asked for where the epoch ends
    utterances: int
    of_utterances: int  # in the same batches, all members' shares together
    numbers: dict[str, float]  # the sums of the steps' "audio_s", "train_s" and so on
    ends: bool  # whether the epoch has no further batch
    changes: Arrays  # of the weights and moving statistics
    losses: np.ndarray  # float32 (utterances,)
    positions: np.ndarray  # int64 (utterances,)
    link_s: float = 0.0  # of sending weights and changes
    staleness: int = 0  # changes by others added to the weights since the block began


def _delivery(
    rank: int, result: Message, arrays: Arrays, link_s: float, utterances: int
) -> Delivery:
    """Returns a worker's result.

    Raises ConnectionError for values that training can't have. A worker may be broken,
    or an intruder.

    Args:
        rank: the worker's.
        result: the numbers that it sent, checked by `Hub._expected`.
        arrays: changes, losses and positions, of the expected shapes.
        link_s: seconds of sending weights and changes.
        utterances: in the split.
    """
    *changes, losses, positions = arrays
    finite = all(np.isfinite(values).all() for values in (*changes, losses))
    _demand(finite, "its weights or losses have NaN or infinity")
    in_split = (positions >= 0) & (positions < utterances)
    _demand(in_split.all(), f"its utterances aren't among the split's {utterances}")

    return Delivery(
        rank=rank,
        steps=result["steps"],
        utterances=result["utterances"],
        of_utterances=result["of_utterances"],
        numbers={name: result[name] for name in SUMMED},
        ends=result["ends"],
        changes=changes,
        losses=losses,
        positions=positions,
        link_s=link_s,
    )


def _demand(holds: bool, problem: str) -> None:
    """Raises ConnectionError, which ends the worker's membership, unless a rule holds."""
    if not holds:
        raise ConnectionError(f"its result is wrong: {problem}")


@dataclass
class _Member:
    """A worker that trains in rounds, the chief included."""

    rank: int
    share: Share | None = None  # None while it waits for a segment
    position: int = 0  # step of the epoch up to which it has delivered
    block: Block | None = None  # being trained
    newcomer: bool = True  # lacks the optimizer's state
    why_left: str = "its connection has ended"


class Hub:
    """The members that train in rounds, and their blocks.

    Public methods are for the chief's training thread. `await_all` precedes
    `begin_training`. Then, for each segment: `open`; `take` and `deliver` for each of
    the chief's blocks, `settle`, and `collect`.

    Args:
        cluster: the workers, with their addresses.
        secret: which workers must know to become members.

    Attributes:
        weights: with which the next block begins.
        asynchronous: whether changes are added when they arrive.
        steps: of a block.
        most_ahead: how many blocks a member may be ahead of the slowest.
        timeout_s: how long the chief waits for a member.
        utterances: in the split on which members train.
        note: called with each event for the ledger, of a class in
            `tfasr.ledger.schema`.
    """

    def __init__(self, cluster: Cluster, secret: bytes):

        self.weights: Arrays = []
        self.asynchronous = False
        self.steps = 1
        self.most_ahead = 1
        self.timeout_s = 60.0
        self.utterances = 0
        self.note: Callable[[Any], None] = lambda value: None

        self._cluster = cluster
        self._changed = threading.Condition()
        self._members = {0: _Member(0, newcomer=False)}
        self._optimizer_state: Arrays = []  # for newcomers
        self._segment = 0  # its number, from 1; 0 before training
        self._epoch = 0
        self._limit = 0  # the segment's last step
        self._version = 0  # of the weights: how many changes have been added
        self._delivered: list[Delivery] = []
        self._session = 0
        self._failed = ""
        # Why workers can't become members; None until `await_all` or `close`.
        self._refusal: Callable[..., str] | None = None
        # The last message to members, once the run ends.
        self._end: dict[str, Any] | None = None
        self._began = time.monotonic()
        self._port = ChiefPort(cluster, secret, self._attend)

    def await_all(
        self, refusal: Callable[..., str], session: int, within_s: float
    ) -> list[int]:
        """Waits until all workers have joined.

        Args:
            refusal: gets a worker's offer (its version, data and configuration) and
                ``name``, and returns how they differ from the chief's, or "".
            session: the run's, for the workers' ledgers.
            within_s: seconds.

        Returns:
            The ranks of the workers that are still missing. They may join later.

        Raises:
            RunError: if a worker could not begin.
        """
        with self._changed:
            self._refusal = refusal
            self._session = session
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failed or self._complete(), within_s)

            if self._failed:
                raise RunError(self._failed)

            return [
                rank for rank in range(self._cluster.size) if rank not in self._members
            ]

    def begin_training(
        self,
        *,
        asynchronous: bool,
        block_steps: int,
        utterances: int,
        note: Callable[[Any], None],
    ) -> None:
        """Sets how members exchange weights, and what writes their events.

        Args:
            asynchronous: whether changes are added when they arrive.
            block_steps: steps of a block.
            utterances: in the split on which members train.
            note: called with each event for the ledger.
        """
        self.asynchronous = asynchronous
        self.steps = block_steps
        self.utterances = utterances
        self.note = note

    def open(
        self,
        epoch: int,
        first: int,
        last: int,
        weights: Arrays,
        state: Callable[[], Arrays],
    ) -> None:
        """Lets all idle members train on some batches of an epoch.

        Args:
            epoch: the epoch.
            first: the first batch's number in it, from 0.
            last: the number after the last batch's.
            weights: with which they begin.
            state: returns the values of the optimizer's variables, for members that
                lack them.
        """
        with self._changed:
            self.weights = weights
            idle = [m for _, m in sorted(self._members.items()) if m.block is None]
            if any(member.newcomer for member in idle):
                self._optimizer_state = state()

            self._segment += 1
            self._epoch = epoch
            self._limit = last

            for member in self._members.values():
                member.share = None

            for place, member in enumerate(idle):
                member.share = Share(place, len(idle))
                member.position = first

            self._changed.notify_all()

    def take(self) -> tuple[Block, Arrays]:
        """Returns the chief's next block and the weights with which it begins.

        Waits until the slowest member isn't too far behind.
        """
        with self._changed:
            chief = self._members[0]
            # The segment may have been cut since the chief's last block.
            self._limit = max(self._limit, chief.position + 1)
            self._wait(
                lambda: self._may_begin(chief), lambda m: m.position <= self._slowest()
            )

            return self._begin(chief), self.weights

    def deliver(self, block: Block, delivery: Delivery) -> None:
        """Takes the result of the chief's own block."""
        with self._changed:
            self._accept(self._members[0], block, delivery)

    def settle(self) -> int | None:
        """Waits until all members are at the segment's end.

        A member that is `timeout_s` later than the chief is left out until it has
        delivered.

        Returns:
            The rank of the last member; None if all others were there before the chief;
            `NOT_AT_END` if the chief itself isn't there.
        """
        with self._changed:
            if self._late(self._members[0]):
                return NOT_AT_END

            if self._all_at_end():
                return None

            left_out = self._wait(self._all_at_end, self._late)
            return left_out[0] if left_out else self._delivered[-1].rank

    def collect(self) -> list[Delivery]:
        """Returns the deliveries since the last call, by rank.

        So their mean doesn't depend on who was faster.
        """
        with self._changed:
            delivered = sorted(self._delivered, key=lambda delivery: delivery.rank)
            self._delivered = []
            return delivered

    def _complete(self) -> bool:
        """Whether all workers are members."""
        return len(self._members) == self._cluster.size

    @property
    def size(self) -> int:
        """The number of members, the chief included."""
        return len(self._members)

    def cut(self) -> None:
        """Ends the segment after the blocks that have begun."""
        with self._changed:
            # Otherwise the segment is one block.
            if not self.asynchronous:
                return

            members = [member for member in self._members.values() if member.share]
            ends = [
                m.block.step + m.block.steps if m.block else m.position for m in members
            ]
            self._limit = min(self._limit, max(ends, default=self._limit))

    def close(self, reason: str = "", exit_code: int = 0) -> None:
        """Ends all members' training.

        A reason also goes to workers that are still connecting. ``exit_code`` is that
        of their processes.
        """
        with self._changed:
            self._end = {"kind": "end", "reason": reason, "exit_code": exit_code}
            self._refusal = self._refusal or (lambda offer, name: reason)
            self._changed.notify_all()

        if reason and not self._complete() and not self._segment:
            time.sleep(_LINGER_S)

        # Until the others' threads have sent them the end.
        self._port.close(_LINGER_S)

    # The methods below run in the workers' threads, or with the lock held.

    def _attend(
        self, rank: int, incoming: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Trains with one worker until it leaves or the run ends.

        Args:
            rank: the worker's.
            incoming: what it sends.
            context: of its connection.

        Yields:
            What is sent to it.
        """
        context.send_initial_metadata(ACCEPTED)
        message, _ = assembled(incoming, lambda message: [])

        with self._changed:
            refused = self._refused(rank, message)
            # A successor of this rank may be here already.
            if not context.is_active():
                return

            if not refused:
                fresh = not self._segment
                member = self._add(rank, context)

        if refused:
            yield from pieces(
                self._end or {"kind": "end", "reason": refused, "exit_code": 2}
            )
            return

        yield from pieces({"kind": "welcome", "session": self._session, "fresh": fresh})

        try:
            while (yield from self._train_block(member, incoming)):
                pass
        except ConnectionError as error:
            member.why_left = str(error)
            raise

        replaced = {
            "kind": "end",
            "reason": "another worker took its rank",
            "exit_code": 1,
        }
        yield from pieces(self._end or replaced)

    def _refused(self, rank: int, message: Message) -> str:
        """Returns why a worker can't become a member, or "".

        Before training, this also ends the run, which can't begin without the worker.
        """
        name = self._cluster.name(rank)
        if message.get("kind") == "failed":
            refused = f"{name} could not begin: {message.get('reason')!s:.500}"
        else:
            self._changed.wait_for(lambda: self._refusal is not None)
            offer = message.get("offer")
            if not isinstance(offer, dict):
                offer = {}

            refused = self._refusal(offer, name=name)

        if refused and not self._segment:
            self._failed = refused
            self._changed.notify_all()

        return refused

    def _add(self, rank: int, context: grpc.ServicerContext) -> _Member:
        """Makes a worker a member, in the place of an earlier one of its rank."""
        member = _Member(rank)
        self._members[rank] = member
        if self._segment:
            self.note(WorkerJoined(rank=rank))
            log.info("%s has joined", self._cluster.name(rank))
            self.cut()

        self._changed.notify_all()
        # Called when the connection ends, unless it has ended already.
        if not context.add_callback(lambda: self._forget(member)):
            self._forget(member)

        return member

    def _forget(self, member: _Member) -> None:
        """Removes a member whose connection has ended."""
        with self._changed:
            if not self._gone(member):
                del self._members[member.rank]
                self._leave_out(member, member.why_left)

    def _train_block(
        self, member: _Member, incoming: Iterator[bytes]
    ) -> Generator[bytes, None, bool]:
        """Waits for a member's turn, has it train a block and takes the result.

        Returns False once there is no further turn.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._over(member)
                    or (self._late(member) and self._may_begin(member))
                )
            )
            if self._over(member):
                return False

            block = self._begin(member)
            arrays = list(self.weights)
            message = {
                "kind": "block",
                "block": asdict(block),
                "weights": len(arrays),
            }

            if member.newcomer:
                arrays += self._optimizer_state

        began = time.monotonic()
        yield from pieces(message, arrays)
        # They may be large, and the worker takes its time.
        del arrays
        result, received = assembled(incoming, functools.partial(self._expected, block))
        link_s = max(time.monotonic() - began - result["busy_s"], 0.0)
        delivery = _delivery(member.rank, result, received, link_s, self.utterances)

        with self._changed:
            member.newcomer = False
            self._accept(member, block, delivery)

        return True

    def _over(self, member: _Member) -> bool:
        return self._end is not None or self._gone(member)

    def _expected(self, block: Block, result: Message) -> list[Spec]:
        """Returns the types and shapes of the arrays that belong to a result.

        Raises ConnectionError for a result that this block can't have.
        """
        if result.get("kind") == "failed":
            raise ConnectionError(f"it failed: {result.get('reason')!s:.500}")

        # The largest value of each number, of its type.
        most = {
            "steps": block.steps,
            "of_utterances": self.utterances,
            "utterances": result.get("of_utterances"),
            "ends": True,
        }
        most |= dict.fromkeys(COUNTED, float(_MOST_PER_UTTERANCE * self.utterances))
        most |= dict.fromkeys((*TIMED, "busy_s"), time.monotonic() - self._began)
        for name, limit in most.items():
            value = result.get(name)
            fits = type(value) in (int, type(limit)) and 0 <= value <= limit
            _demand(fits, f"{name} is {value!r:.60} instead of 0 to {limit:g}")

        each = (result["utterances"],)
        return [*map(spec_of, self.weights), ("<f4", each), ("<i8", each)]

    def _gone(self, member: _Member) -> bool:
        """Whether a member has left, or another one has taken its rank."""
        return self._members.get(member.rank) is not member

    def _late(self, member: _Member) -> bool:
        """Whether a member has batches of the segment to train on."""
        return member.share is not None and member.position < self._limit

    def _all_at_end(self) -> bool:
        return not any(map(self._late, self._members.values()))

    def _slowest(self) -> int:
        """Returns the step of the epoch that the slowest member has reached."""
        positions = [m.position for m in self._members.values() if m.share]
        return min(positions, default=self._limit)

    def _may_begin(self, member: _Member) -> bool:
        """Whether a member isn't too far ahead of the slowest."""
        return member.position <= self._slowest() + self.most_ahead * self.steps

    def _begin(self, member: _Member) -> Block:
        """Gives a member its next block."""
        member.block = Block(
            segment=self._segment,
            epoch=self._epoch,
            step=member.position,
            steps=min(self.steps, self._limit - member.position),
            share=member.share,
            version=self._version,
        )
        return member.block

    def _accept(self, member: _Member, block: Block, delivery: Delivery) -> None:
        """Takes a member's result, and adds its change if that is done at once.

        The result of a member that was left out is lost; it may join the next segment.
        """
        member.block = None
        self._changed.notify_all()
        if member.share is None or block.segment != self._segment:
            self.note(WorkerLate(rank=member.rank, lost_utterances=delivery.utterances))
            self.cut()
            return

        member.position += delivery.steps
        if delivery.ends:
            self._limit = min(self._limit, member.position)

        delivery = replace(delivery, staleness=self._version - block.version)
        if self.asynchronous:
            part = np.float32(delivery.utterances / max(delivery.of_utterances, 1))
            # Not in place: the weights before may be on their way to others.
            added = zip(self.weights, delivery.changes, strict=True)
            self.weights = [weight + part * change for weight, change in added]
            self._version += 1
            # They aren't needed any more, and large.
            delivery = replace(delivery, changes=[])

        self._delivered.append(delivery)

    def _wait(
        self, done: Callable[[], bool], late: Callable[[_Member], bool]
    ) -> list[int]:
        """Waits for ``done``; after `timeout_s`, leaves out the late members.

        Returns their ranks.
        """
        deadline_s = time.monotonic() + self.timeout_s
        while not self._changed.wait_for(done, _LOOK_S):
            if time.monotonic() < deadline_s:
                continue

            overdue = [
                m for m in self._members.values() if m.rank and m.share and late(m)
            ]
            for member in overdue:
                self._leave_out(member, f"nothing from it for {self.timeout_s:g} s")

            return [member.rank for member in overdue]

        return []

    def _leave_out(self, member: _Member, why: str) -> None:
        """Goes on without a member until it joins a later segment."""
        member.share = None
        self._changed.notify_all()
        if self._end is None:
            log.warning("%s is left out: %s", self._cluster.name(member.rank), why)
            self.note(WorkerLeft(rank=member.rank, why=why))
            self.cut()
