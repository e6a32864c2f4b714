"""The chief's list of workers that train in rounds: its members, their blocks and their
results.

The chief opens a segment of an epoch's batches for all members. Each trains on its
share of them, block by block, and sends how its weights changed. With "local" exchange,
a segment is one block, and its changes are averaged when all have arrived. With
"asynchronous", it lasts until the next checkpoint or the epoch's end, and every change
is added when it arrives.
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
_LOOK_S = 0.2
# What a delivery adds up over its steps, see `tfasr.training.step.StepResult`.
COUNTED = ("audio_s", "frames", "padded_frames")
TIMED = ("input_wait_s", "compile_s", "train_s")
SUMMED = (*COUNTED, *TIMED)
# Seconds or frames, far more than any utterance has
_MOST_PER_UTTERANCE = 10**6


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
    """Returns a worker's result; raises ConnectionError for values that training can't
    have.
    """
    *changes, losses, positions = arrays
    for values in (*changes, losses):
        _demand(
            bool(np.isfinite(values).all()),
            "its weights or losses have NaN or infinity",
        )

    in_split = (positions >= 0) & (positions < utterances)
    _demand(
        bool(in_split.all()), f"its utterances aren't among the split's {utterances}"
    )
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
    if not holds:
        raise ConnectionError(f"its result is wrong: {problem}")


@dataclass
class _Member:
    rank: int
    share: Share | None = None  # None while it waits for a segment
    position: int = 0  # step of the epoch up to which it has delivered
    block: Block | None = None  # being trained
    newcomer: bool = True  # lacks the optimizer's state
    why_left: str = "its connection has ended"


class Hub:
    """Members and their blocks; its public methods are for the chief's training thread."""

    def __init__(self, cluster: Cluster, secret: bytes):
        self.weights: Arrays = []  # what the next block begins with
        self.asynchronous = False
        self.steps = 1  # of a block
        self.most_ahead = 1  # blocks that a member may be ahead of the slowest
        self.timeout_s = 60.0  # how long the chief waits for a member
        self.utterances = 0  # in the split on which members train
        # called with each event for the ledger, of a class in `tfasr.ledger.schema`
        self.note: Callable[[Any], None] = lambda value: None
        self._cluster = cluster
        self._changed = threading.Condition()
        self._members = {0: _Member(0, newcomer=False)}
        self._state: Arrays = []  # of the optimizer, for newcomers
        self._segment = 0
        self._epoch = 0
        self._limit = 0  # the segment's last step
        self._version = 0  # of the weights: how many changes have been added
        self._delivered: list[Delivery] = []
        self._session = 0
        self._failed = ""
        # None until `await_all` or `close`
        self._refusal: Callable[..., str] | None = None
        self._end: dict[str, Any] | None = None
        self._began = time.monotonic()
        self._port = ChiefPort(cluster, secret, self._attend)

    def await_all(
        self, refusal: Callable[..., str], session: int, within_s: float
    ) -> list[int]:
        """Waits until all workers have joined; returns the ranks of those still missing.

        These may join later. ``refusal`` gets a worker's offer (its version, data and
        configuration) and ``name``, and returns how they differ from the chief's, or
        "". Raises RunError if a worker could not begin.
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
        """Sets how members exchange weights, and what writes their events; precedes `open`.

        ``utterances`` is the number of utterances in the split that they train on.
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
        """Lets all idle members train on an epoch's batches from step ``first`` to ``last``.

        They begin with ``weights``. ``state`` returns the values of the optimizer's
        variables, for members that lack them.
        """
        with self._changed:
            self.weights = weights
            idle = [m for _, m in sorted(self._members.items()) if m.block is None]
            if any(member.newcomer for member in idle):
                self._state = state()

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
        """Returns the chief's next block and weights, once the slowest isn't too far
        behind.
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
        """Waits until all members are at the segment's end; returns -1 if the chief
        isn't there.

        A member that is `timeout_s` later than the chief is left out until it has
        delivered. Returns the rank of the last one, or None if all others were there
        before the chief.
        """
        with self._changed:
            if self._late(self._members[0]):
                return -1

            if not any(map(self._late, self._members.values())):
                return None

            late = self._wait(
                lambda: not any(map(self._late, self._members.values())), self._late
            )
            return late[0] if late else self._delivered[-1].rank

    def collect(self) -> list[Delivery]:
        """Returns the deliveries since the last call, by rank.

        So their mean doesn't depend on who was faster.
        """
        with self._changed:
            delivered = sorted(self._delivered, key=lambda delivery: delivery.rank)
            self._delivered = []
            return delivered

    def _complete(self) -> bool:
        return len(self._members) == self._cluster.size

    @property
    def size(self) -> int:
        return len(self._members)

    def cut(self) -> None:
        """Ends the segment after the blocks that have begun."""
        with self._changed:
            if self.asynchronous:
                members = [member for member in self._members.values() if member.share]
                ends = [
                    m.block.step + m.block.steps if m.block else m.position
                    for m in members
                ]
                self._limit = min(self._limit, max(ends, default=self._limit))

    def close(self, reason: str = "", exit_code: int = 0) -> None:
        """Ends all members' training; a reason also goes to workers that are still
        connecting.
        """
        with self._changed:
            self._end = {"kind": "end", "reason": reason, "exit_code": exit_code}
            self._refusal = self._refusal or (lambda offer, name: reason)
            self._changed.notify_all()

        if reason and not self._complete() and not self._segment:
            time.sleep(_LINGER_S)

        self._port.close(_LINGER_S)  # until the others' threads have sent them the end

    # The methods below run in the workers' threads, or with the lock held.

    def _attend(
        self, rank: int, incoming: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Trains with one worker until it leaves or the run ends; yields what is sent
        to it.
        """
        context.send_initial_metadata(ACCEPTED)
        message, _ = assembled(incoming, lambda message: [])
        with self._changed:
            refused = self._refused(rank, message)
            if not context.is_active():  # its successor may be here already
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
        """Returns why a worker can't become a member, or ""; then no run begins with it."""
        name = self._cluster.name(rank)
        if message.get("kind") == "failed":
            refused = f"{name} could not begin: {message.get('reason')!s:.500}"
        else:
            self._changed.wait_for(lambda: self._refusal is not None)
            offer = message.get("offer")
            refused = self._refusal(offer if isinstance(offer, dict) else {}, name=name)

        if refused and not self._segment:
            self._failed = refused
            self._changed.notify_all()

        return refused

    def _add(self, rank: int, context: grpc.ServicerContext) -> _Member:
        member = _Member(rank)
        self._members[rank] = member
        if self._segment:
            self.note(WorkerJoined(rank=rank))
            log.info("%s has joined", self._cluster.name(rank))
            self.cut()

        self._changed.notify_all()
        if not context.add_callback(lambda: self._forget(member)):
            self._forget(member)  # it has left already

        return member

    def _forget(self, member: _Member) -> None:
        with self._changed:
            if not self._gone(member):
                del self._members[member.rank]
                self._leave_out(member, member.why_left)

    def _train_block(
        self, member: _Member, incoming: Iterator[bytes]
    ) -> Generator[bytes, None, bool]:
        """Waits for a member's turn and its result; returns False once there is no turn."""
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
            arrays = [*self.weights, *(self._state if member.newcomer else [])]
            message = {
                "kind": "block",
                "block": asdict(block),
                "weights": len(self.weights),
            }

        began = time.monotonic()
        yield from pieces(message, arrays)
        del arrays  # they may be large, and the worker takes its time
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
        """Returns the arrays that belong to a result; raises ConnectionError for a
        wrong one.
        """
        if result.get("kind") == "failed":
            raise ConnectionError(f"it failed: {result.get('reason')!s:.500}")

        most_s = time.monotonic() - self._began
        most = {
            "steps": block.steps,
            "of_utterances": self.utterances,
            "utterances": result.get("of_utterances"),
            "ends": True,
            **dict.fromkeys(COUNTED, float(_MOST_PER_UTTERANCE * self.utterances)),
            **dict.fromkeys((*TIMED, "busy_s"), most_s),
        }
        for name, limit in most.items():
            value = result.get(name)
            fits = type(value) in (int, type(limit)) and 0 <= value <= limit
            _demand(fits, f"{name} is {value!r:.60} instead of 0 to {limit:g}")

        each = (result["utterances"],)
        return [*map(spec_of, self.weights), ("<f4", each), ("<i8", each)]

    def _gone(self, member: _Member) -> bool:
        return self._members.get(member.rank) is not member

    def _late(self, member: _Member) -> bool:
        return member.share is not None and member.position < self._limit

    def _slowest(self) -> int:
        return min(
            (m.position for m in self._members.values() if m.share), default=self._limit
        )

    def _may_begin(self, member: _Member) -> bool:
        return member.position <= self._slowest() + self.most_ahead * self.steps

    def _begin(self, member: _Member) -> Block:
        steps = min(self.steps, self._limit - member.position)
        where = self._segment, self._epoch, member.position, steps
        member.block = Block(*where, member.share, self._version)
        return member.block

    def _accept(self, member: _Member, block: Block, delivery: Delivery) -> None:
        member.block = None
        self._changed.notify_all()
        if member.share is None or block.segment != self._segment:
            self.note(WorkerLate(rank=member.rank, lost_utterances=delivery.utterances))
            self.cut()  # it may join the next segment
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
            delivery = replace(delivery, changes=[])  # they aren't needed any more

        self._delivered.append(delivery)

    def _wait(
        self, done: Callable[[], bool], late: Callable[[_Member], bool]
    ) -> list[int]:
        """Waits for ``done``; after `timeout_s`, leaves out late members and returns
        the ranks.
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
        member.share = None
        self._changed.notify_all()
        if self._end is None:
            log.warning("%s is left out: %s", self._cluster.name(member.rank), why)
            self.note(WorkerLeft(rank=member.rank, why=why))
            self.cut()
