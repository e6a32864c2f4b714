"""The chief's list of workers that train in rounds: its members, their blocks and their results.

The chief opens a segment of an epoch's batches for all members. Each trains on its share of them,
block by block, and sends how its weights changed. With "local" exchange, a segment is one block,
and its changes are averaged when all have arrived. With "asynchronous", it lasts until the next
checkpoint or the epoch's end, and every change is added when it arrives.
"""

import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfasr.cluster.description import Cluster
from tfasr.cluster.transport import Connection, Listener
from tfasr.data.batches import Share
from tfasr.errors import RunError, UsageError
from tfasr.ledger.schema import WorkerJoined, WorkerLate, WorkerLeft

log = logging.getLogger("tfasr")

# When the chief ends, it waits this long, so that workers still connecting learn the reason.
_LINGER_S = 3.0
_LOOK_S = 0.2
_MOST_INTRODUCED = 128  # connections whose other end has not yet proved to know the secret
_INTRODUCED_S = 15.0  # how long such a proof may take
_MOST_NAMED = 10  # strangers that the log names; of further ones, every thousandth
# What a delivery adds up over its steps, see `tfasr.training.step.StepResult`.
SUMMED = ("audio_s", "frames", "padded_frames", "input_wait_s", "compile_s", "train_s")
Arrays = list[np.ndarray]


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


def _checked_delivery(
    rank: int, message: dict[str, Any], received: Arrays, block: Block, weights: Arrays
) -> Delivery:
    """Returns a worker's result; raises ConnectionError if it can't be that of ``block``."""
    names = ("steps", "utterances", "of_utterances")
    counts = {name: message.get(name) for name in names}
    whole = all(type(count) is int and count >= 0 for count in counts.values())
    _demand(whole, f"its counts are {counts}")
    _demand(counts["steps"] <= block.steps, f"it took {counts['steps']} of {block.steps} steps")
    of_all = counts["utterances"] <= counts["of_utterances"]
    _demand(of_all, f"it has {counts['utterances']} of {counts['of_utterances']} utterances")
    numbers = message.get("numbers")
    known = isinstance(numbers, dict) and numbers.keys() == set(SUMMED)
    _demand(known and all(map(_amount, numbers.values())), f"its sums are {numbers!r:.200}")
    _demand(type(message.get("ends")) is bool, f"it ends with {message.get('ends')!r:.60}")

    _demand(len(received) == len(weights) + 2, f"it sent {len(received)} arrays")
    *changes, losses, positions = received
    for weight, change in zip(weights, changes, strict=True):
        alike = change.shape == weight.shape and change.dtype == weight.dtype
        text = f"{change.dtype}{change.shape} for {weight.dtype}{weight.shape}"
        _demand(alike, f"it sent a change of {text}")
        _demand(bool(np.isfinite(change).all()), "its change of the weights has NaN or infinity")
    each = (counts["utterances"],)
    _demand(losses.shape == positions.shape == each, f"{each[0]} utterances lack losses or places")
    kinds = (losses.dtype.kind, positions.dtype.kind)
    _demand(kinds == ("f", "i"), f"its losses and places are of the kinds {kinds}")
    return Delivery(
        rank=rank,
        **counts,
        numbers=numbers,
        ends=message["ends"],
        changes=changes,
        losses=losses,
        positions=positions,
    )


def shut(connection: Any) -> None:
    """Wakes a thread that waits for a connection's bytes."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _demand(holds: bool, problem: str) -> None:
    if not holds:
        raise ConnectionError(f"its result is wrong: {problem}")


def _amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


@dataclass
class _Member:
    rank: int
    link: Connection | None  # None for the chief itself
    share: Share | None = None  # None while it waits for a segment
    position: int = 0  # step of the epoch up to which it has delivered
    block: Block | None = None  # being trained
    newcomer: bool = True  # lacks the optimizer's state


class Hub:
    """Members and their blocks; its public methods are for the chief's training thread."""

    def __init__(self, cluster: Cluster, secret: bytes):
        self.weights: Arrays = []  # what the next block begins with
        self.asynchronous = False
        self.steps = 1  # of a block
        self.most_ahead = 1  # blocks that a member may be ahead of the slowest
        self.timeout_s = 60.0  # how long the chief waits for a member
        # called with each event for the ledger, of a class in `tfasr.ledger.schema`
        self.note: Callable[[Any], None] = lambda value: None
        self._cluster = cluster
        self._changed = threading.Condition()
        self._members = {0: _Member(0, None, newcomer=False)}
        self._state: Arrays = []  # of the optimizer, for newcomers
        self._segment, self._epoch, self._limit, self._version = 0, 0, 0, 0
        self._shared_for: Any = None
        self._delivered: list[Delivery] = []
        self._session, self._failed = 0, ""
        self._refusal: Callable[..., str] | None = None  # None until `await_all` or `close`
        self._end: dict[str, Any] | None = None
        self._introducing = threading.Semaphore(_MOST_INTRODUCED)
        self._refused = 0
        self._listener = Listener(cluster, secret)
        threading.Thread(target=self._let_in, name="listener", daemon=True).start()

    def await_all(self, refusal: Callable[..., str], session: int, within_s: float) -> list[int]:
        """Waits until all workers have joined; returns the ranks of those still missing.

        These may join later. ``refusal`` gets a worker's offer (its version, data and
        configuration) and ``name``, and returns how they differ from the chief's, or "". Raises
        RunError if a worker could not begin.
        """
        everybody = set(range(self._cluster.size))
        with self._changed:
            self._refusal, self._session = refusal, session
            self._changed.notify_all()
            done = lambda: self._failed or everybody == set(self._members)  # noqa: E731
            self._changed.wait_for(done, within_s)
            if self._failed:
                raise RunError(self._failed)
            return sorted(everybody - set(self._members))

    def begin_training(
        self, *, asynchronous: bool, block_steps: int, note: Callable[[Any], None]
    ) -> None:
        """Sets how members exchange weights, and what writes their events; precedes `open`."""
        self.asynchronous = asynchronous
        self.steps = block_steps
        self.note = note

    def open(
        self, epoch: int, first: int, last: int, weights: Arrays, state: Callable[[], Arrays]
    ) -> None:
        """Lets all idle members train on an epoch's batches from step ``first`` to ``last``.

        They begin with ``weights``. ``state`` returns the values of the optimizer's variables, for
        members that lack them.
        """
        with self._changed:
            self.weights = weights
            idle = [member for member in self._members.values() if member.block is None]
            if any(member.newcomer for member in idle):
                self._state = state()
            self._segment, self._epoch, self._limit = self._segment + 1, epoch, last
            shares = self._shares(idle)
            for member in self._members.values():
                member.share = None
            for member, share in zip(idle, shares, strict=True):
                member.share, member.position = share, first
            self._changed.notify_all()

    def take(self) -> tuple[Block, Arrays]:
        """Returns the chief's next block and weights, once the slowest isn't too far behind."""
        with self._changed:
            chief = self._members[0]
            # The segment may have been cut since the chief's last block.
            self._limit = max(self._limit, chief.position + 1)
            self._wait(lambda: self._may_begin(chief), lambda m: m.position <= self._slowest())
            return self._begin(chief), [array.copy() for array in self.weights]

    def deliver(self, block: Block, delivery: Delivery) -> None:
        """Takes the result of the chief's own block."""
        with self._changed:
            self._accept(self._members[0], block, delivery)

    def settle(self) -> int | None:
        """Waits until all members are at the segment's end; returns -1 if the chief isn't there.

        A member that is `timeout_s` later than the chief is left out until it has delivered.
        Returns the rank of the last one, or None if all others were there before the chief.
        """
        with self._changed:
            if self._late(self._members[0]):
                return -1
            if not any(map(self._late, self._members.values())):
                return None
            late = self._wait(lambda: not any(map(self._late, self._members.values())), self._late)
            return late[0] if late else self._delivered[-1].rank

    def collect(self) -> list[Delivery]:
        """Returns what has been delivered since the last time."""
        with self._changed:
            delivered, self._delivered = self._delivered, []
            return delivered

    @property
    def size(self) -> int:
        return len(self._members)

    def cut(self) -> None:
        """Ends the segment after the blocks that have begun."""
        with self._changed:
            self._cut()

    def close(self, reason: str = "", exit_code: int = 0) -> None:
        """Ends all members' training; a reason also goes to workers that are still connecting."""
        with self._changed:
            self._end = {"kind": "end", "reason": reason, "exit_code": exit_code}
            self._refusal = self._refusal or (lambda offer, name: reason)
            self._changed.notify_all()
            complete = len(self._members) == self._cluster.size
        if reason and not complete and not self._segment:
            time.sleep(_LINGER_S)
        self._listener.close()
        with self._changed:  # each has its own thread, which sends it the end
            self._changed.wait_for(lambda: len(self._members) == 1, _LINGER_S)
            members = list(self._members.values())[1:]
        for member in members:
            member.link.close()

    # The methods below run in the listener's and the members' threads, or with the lock held.

    def _let_in(self) -> None:
        while (connection := self._listener.accept()) is not None:
            if not self._introducing.acquire(blocking=False):
                connection.close()  # a worker tries again
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Any) -> None:
        with contextlib.closing(connection):
            # Each message has a timeout of its own, but a stranger may send byte by byte.
            patience = threading.Timer(_INTRODUCED_S, shut, [connection])
            patience.daemon = True
            patience.start()
            try:
                rank, link = self._listener.admit(connection)
            except (OSError, UsageError) as error:
                self._refused += 1
                if self._refused <= _MOST_NAMED or self._refused % 1000 == 0:
                    log.warning(
                        "refused a connection to the chief, the %d. one: %s", self._refused, error
                    )
                return
            finally:
                patience.cancel()
                self._introducing.release()
            with contextlib.closing(link), contextlib.suppress(OSError):
                self._welcome(rank, link)

    def _welcome(self, rank: int, link: Connection) -> None:
        name, (message, _) = self._cluster.name(rank), link.receive()
        with self._changed:
            if message["kind"] == "failed":
                self._failed = f"{name} could not begin: {message['reason']}"
                self._changed.notify_all()
                return
            self._changed.wait_for(lambda: self._refusal is not None)
            refused = self._refusal(message["offer"], name=name)
            if not refused:
                member, fresh = self._add(rank, link), not self._segment
            elif not self._segment:
                self._failed = refused
                self._changed.notify_all()
        if refused:
            link.send(self._end or {"kind": "end", "reason": refused, "exit_code": 2})
            link.waiting(_LINGER_S)  # until the worker has read this and left
            return
        why = "it ended"
        try:
            link.send({"kind": "welcome", "session": self._session, "fresh": fresh})
            while self._one_block(member):
                pass
        except OSError as error:
            why = str(error)
        finally:
            with self._changed:
                if not self._gone(member):
                    del self._members[rank]
                    self._leave_out(member, why)

    def _add(self, rank: int, link: Connection) -> _Member:
        before = self._members.pop(rank, None)
        if before is not None:
            before.link.close()
        self._members[rank] = member = _Member(rank, link)
        if self._segment:
            self.note(WorkerJoined(rank=rank))
            log.info("%s has joined", self._cluster.name(rank))
            self._cut()
        self._changed.notify_all()
        return member

    def _one_block(self, member: _Member) -> bool:
        with self._changed:
            ended = lambda: self._end is not None or self._gone(member)  # noqa: E731
            self._changed.wait_for(
                lambda: ended() or (self._late(member) and self._may_begin(member))
            )
            if ended():
                replaced = {"kind": "end", "reason": "another worker took its rank", "exit_code": 1}
                block, message, arrays = None, self._end or replaced, []
            else:
                block = self._begin(member)
                arrays = [array.copy() for array in self.weights]
                arrays += self._state if member.newcomer else []
                share = block.share.rank, block.share.count
                message = {"kind": "block", "share": share, "weights": len(self.weights)}
                message |= {"epoch": block.epoch, "step": block.step, "steps": block.steps}
        began = time.monotonic()
        member.link.send(message, arrays)
        if block is None:
            return False
        message, received = member.link.receive()
        took_s = time.monotonic() - began
        delivery = _checked_delivery(member.rank, message, received, block, self.weights)
        busy_s = message["busy_s"] if _amount(message.get("busy_s")) else took_s
        delivery = replace(delivery, link_s=max(took_s - busy_s, 0.0))
        with self._changed:
            member.newcomer = False
            self._accept(member, block, delivery)
        return True

    def _gone(self, member: _Member) -> bool:
        return self._members.get(member.rank) is not member

    def _late(self, member: _Member) -> bool:
        return member.share is not None and member.position < self._limit

    def _slowest(self) -> int:
        return min((m.position for m in self._members.values() if m.share), default=self._limit)

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
            self._cut()  # it may join the next segment
            return
        member.position += delivery.steps
        if delivery.ends:
            self._limit = min(self._limit, member.position)
        self._delivered.append(replace(delivery, staleness=self._version - block.version))
        if self.asynchronous:
            part = np.float32(delivery.utterances / max(delivery.of_utterances, 1))
            for weight, change in zip(self.weights, delivery.changes, strict=True):
                weight += part * change
            self._version += 1

    def _wait(self, done: Callable[[], bool], late: Callable[[_Member], bool]) -> list[int]:
        """Waits for ``done``; after `timeout_s`, leaves out late members and returns the ranks."""
        deadline_s = time.monotonic() + self.timeout_s
        while not self._changed.wait_for(done, _LOOK_S):
            if time.monotonic() < deadline_s:
                continue
            overdue = [m for m in self._members.values() if m.rank and m.share and late(m)]
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
            self._cut()

    def _cut(self) -> None:
        if self.asynchronous:
            members = [member for member in self._members.values() if member.share]
            ends = [m.block.step + m.block.steps if m.block else m.position for m in members]
            self._limit = min(self._limit, max(ends, default=self._limit))

    def _shares(self, members: Sequence[_Member]) -> list[Share]:
        # Shares are kept for an epoch: new ones make workers read, and trace, their batches anew.
        for_whom = self._epoch, [member.rank for member in members]
        if for_whom == self._shared_for and all(member.share for member in members):
            return [member.share for member in members]
        count, self._shared_for = len(members), for_whom
        return [Share(place, count) for place in range(count)]
