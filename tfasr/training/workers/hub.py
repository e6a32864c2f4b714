"""The chief's list of workers that train in rounds: who is in, what each has to do and delivered.

The chief opens a segment of an epoch's batches for all members. Each trains on its share of them,
block by block, and sends how its weights changed. Locally a segment is one block, whose changes are
averaged when all are there; asynchronously it reaches to the next checkpoint or the epoch's end,
and every change is added when it arrives.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfasr.cluster.description import Cluster
from tfasr.cluster.transport import Door, Link
from tfasr.data.shares import Share
from tfasr.errors import RunError

log = logging.getLogger("tfasr")

# An error that ends the chief stays so long at the door, so that workers on their way hear of it.
_LINGER_S = 3.0
_LOOK_S = 0.2
_PARTS = 64  # of a batch, to which shares by speed are rounded
Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Block:
    """Consecutive batches of an epoch, of which a member trains on its share."""

    segment: int
    epoch: int
    step: int  # of the epoch, from 0: the first batch
    steps: int
    share: Share
    version: int  # of the weights that it begins with


@dataclass(frozen=True)
class Delivery:
    """What a member made of a block."""

    rank: int
    steps: int  # fewer than asked for where the epoch ends
    utterances: int
    of_utterances: int  # of the same batches, over all shares
    numbers: dict[str, float]  # the sums of the steps' "audio_s", "train_s" and so on
    changes: Arrays  # of the weights and moving statistics
    losses: np.ndarray  # float32 (utterances,)
    positions: np.ndarray  # int64 (utterances,)
    ends: bool  # whether the epoch has no further batch
    link_s: float = 0.0  # of sending weights and changes
    staleness: int = 0  # changes of others that were added meanwhile


@dataclass
class _Member:
    rank: int
    link: Link | None  # None for the chief itself
    share: Share | None = None  # None while it waits for a segment
    position: int = 0  # step of the epoch up to which it has delivered
    block: Block | None = None  # being trained
    newcomer: bool = True  # lacks the optimizer's state
    speed: float = 0.0  # utterances per second of training, in its last block


class Hub:
    """Members and their blocks; `open`, `settle` and `close` are for the chief's training thread.

    Args:
        cluster: the chief's.
        secret: of `tfasr.cluster.transport.shared_secret`.
    """

    def __init__(self, cluster: Cluster, secret: bytes):
        self.weights: Arrays = []
        self.version = 0  # how often they have changed
        self.session = 0  # of the run
        self.asynchronous, self.by_speed = False, False
        self.steps, self.most_ahead, self.timeout_s = 1, 1, 60.0  # of a block; blocks; seconds
        self._cluster = cluster
        self._changed = threading.Condition()
        self._members = {0: _Member(0, None, newcomer=False)}
        self._state: Arrays = []  # of the optimizer, for newcomers
        self._segment, self._epoch, self._limit = 0, 0, 0
        self._shared_for: Any = None
        self._delivered: list[Delivery] = []
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._failed: dict[int, str] = {}
        self._refusal: Callable[..., str] | None = None  # None until the chief's offer is known
        self._end: dict[str, Any] | None = None
        self._door = Door(cluster, secret)
        threading.Thread(target=self._let_in, name="door", daemon=True).start()

    def await_all(self, refusal: Callable[..., str], session: int, within_s: float) -> list[int]:
        """Waits until all workers have joined and returns the ranks of those that have not.

        Args:
            refusal: returns why the offer of a worker with a ``name`` does not fit, or "".
            session: of the run.
            within_s: how long; a worker may also join later.

        Raises:
            RunError: if a worker that came could not begin.
        """
        with self._changed:
            self._refusal, self.session = refusal, session
            self._changed.notify_all()
            everybody = set(range(self._cluster.size))
            self._changed.wait_for(
                lambda: self._failed or everybody == set(self._members), within_s
            )
            for rank, reason in self._failed.items():
                raise RunError(f"{self._cluster.name(rank)} could not begin: {reason}")
            return sorted(everybody - set(self._members))

    def open(self, epoch: int, first: int, last: int, state: Callable[[], Arrays]) -> None:
        """Lets all idle members train on an epoch's batches from step ``first`` to ``last``.

        ``state`` returns the values of the optimizer's variables, for those that have none.
        """
        with self._changed:
            idle = [member for member in self._members.values() if member.block is None]
            if any(member.newcomer for member in idle):
                self._state = state()
            self._segment, self._epoch, self._limit = self._segment + 1, epoch, last
            for member in self._members.values():
                member.share = member.share if member in idle else None
            for member, share in zip(idle, self._shares(idle), strict=True):
                member.share, member.position = share, first
            self._changed.notify_all()

    def _shares(self, members: Sequence[_Member]) -> list[Share]:
        # The same for an epoch: new ones make workers read, and trace, their batches anew.
        for_whom = self._epoch, [member.rank for member in members], self.by_speed
        if for_whom == self._shared_for:
            return [member.share for member in members]
        count, self._shared_for = len(members), for_whom
        speeds = [member.speed for member in members]
        if not (self.by_speed and all(speeds)):
            return [Share(place, count) for place in range(count)]
        ends = [0, *(round(_PARTS * sum(speeds[: k + 1]) / sum(speeds)) for k in range(count))]
        spans = zip(ends, ends[1:], strict=False)
        return [Share(k, count, (first, last, _PARTS)) for k, (first, last) in enumerate(spans)]

    def take(self) -> Block:
        """Returns the chief's next block, once the slowest member isn't too far behind."""
        with self._changed:
            chief = self._members[0]
            self._wait(lambda: self._may_begin(chief), lambda m: m.position <= self._slowest())
            return self._begin(chief)

    def deliver(self, block: Block, delivery: Delivery) -> None:
        """Takes what the chief made of its block."""
        with self._changed:
            self._accept(self._members[0], block, delivery)

    def settle(self) -> int | None:
        """Waits until all members are at the segment's end; -1 if the chief is not there yet.

        Who is `timeout_s` later than the chief is left out until it has delivered. Returns the rank
        that was waited for, None if all others had been there before.
        """
        with self._changed:
            if self._members[0].position < self._limit:
                return -1
            if not any(map(self._late, self._members.values())):
                return None
            left = self._wait(lambda: not any(map(self._late, self._members.values())), self._late)
            return left[0] if left else self._delivered[-1].rank

    def collect(self) -> list[Delivery]:
        """Returns what has been delivered since the last time."""
        with self._changed:
            delivered, self._delivered = self._delivered, []
            return delivered

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns who has come and gone since the last time, as events for the ledger."""
        with self._changed:
            events, self._events = self._events, []
            return events

    @property
    def ranks(self) -> list[int]:
        return sorted(self._members)

    def cut(self) -> None:
        """Ends the segment after the blocks that have begun."""
        with self._changed:
            self._cut()

    def close(self, reason: str = "", exit_code: int = 0) -> None:
        """Ends all members' training; with a reason, also that of those that come just now."""
        with self._changed:
            self._end = {"kind": "end", "reason": reason, "exit_code": exit_code}
            self._refusal = self._refusal or (lambda offer, name: reason)
            self._changed.notify_all()
            workers = [m for m in self._members.values() if m.link is not None]
            everybody = len(workers) == self._cluster.size - 1
        if reason and not everybody:
            time.sleep(_LINGER_S)
        self._door.close()
        deadline_s = time.monotonic() + _LINGER_S
        with self._changed:  # each has its own thread, which sends it the end
            self._changed.wait_for(
                lambda: len(self._members) == 1, max(deadline_s - time.monotonic(), 0)
            )
            members = list(self._members.values())
        for member in members:
            if member.link is not None:
                member.link.close()

    # What follows runs in the door's and the members' threads, or with the lock held.

    def _let_in(self) -> None:
        while (connection := self._door.accept()) is not None:
            threading.Thread(target=self._meet, args=(connection,), daemon=True).start()

    def _meet(self, connection: Any) -> None:
        with contextlib.closing(connection):
            try:
                rank, link = self._door.admit(connection)
            except OSError as error:
                log.warning("somebody was refused at the chief's port: %s", error)
                return
            with contextlib.closing(link), contextlib.suppress(OSError):
                self._serve(rank, link)

    def _serve(self, rank: int, link: Link) -> None:
        name, (message, _) = self._cluster.name(rank), link.receive()
        if message["kind"] == "failed":
            log.warning("%s could not begin: %s", name, message["reason"])
            with self._changed:
                self._failed[rank] = message["reason"]
                self._changed.notify_all()
            return
        with self._changed:
            self._changed.wait_for(lambda: self._refusal is not None)
            refused = self._refusal(message["offer"], name=name)
            if not refused:
                self._replace(rank, link)
                member = self._members[rank]
        if refused:
            link.send({"kind": "end", "reason": refused, "exit_code": 2})
            link.waiting(_LINGER_S)  # until it has read it and left
            return
        why = "it ended"
        try:
            link.send({"kind": "welcome", "session": self.session, "fresh": not self._segment})
            while self._one_block(member):
                pass
            why = "it was asked to end"
        except OSError as error:
            why = str(error)
        finally:
            self._remove(member, why)

    def _replace(self, rank: int, link: Link) -> None:
        before = self._members.pop(rank, None)
        if before is not None:
            before.link.close()
        self._members[rank] = _Member(rank, link)
        if self._segment:
            self._events.append(("worker_joined", {"rank": rank}))
            log.info("%s has joined", self._cluster.name(rank))
            self._cut()
        self._changed.notify_all()

    def _one_block(self, member: _Member) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._end or self._gone(member)
                    or (self._late(member) and self._may_begin(member))
                )
            )  # fmt: skip
            if self._end is not None or self._gone(member):
                end = self._end or {"kind": "end", "reason": "another took its rank", "exit_code": 1}
            else:
                end, block = None, self._begin(member)
                weights = [*self.weights, *(self._state if member.newcomer else [])]
                if self.asynchronous:
                    weights = [array.copy() for array in weights]
        if end is not None:
            member.link.send(end)
            return False
        began = time.monotonic()
        share = block.share
        member.link.send(
            {
                "kind": "block", "epoch": block.epoch, "step": block.step, "steps": block.steps,
                "share": [share.rank, share.count, share.span], "weights": len(self.weights),
            },
            weights,
        )  # fmt: skip
        message, arrays = member.link.receive()
        if message["kind"] != "result":
            raise ConnectionError(message.get("reason"))
        took_s = time.monotonic() - began
        *changes, losses, positions = arrays
        delivery = Delivery(
            member.rank, message["steps"], message["utterances"], message["of_utterances"],
            message["numbers"], changes, losses, positions, message["ends"],
            max(took_s - message["busy_s"], 0.0),
        )  # fmt: skip
        with self._changed:
            member.newcomer = False
            self._accept(member, block, delivery)
        return not message.get("leaves")

    def _gone(self, member: _Member) -> bool:
        return self._members.get(member.rank) is not member

    def _slowest(self) -> int:
        return min((m.position for m in self._members.values() if m.share), default=self._limit)

    def _may_begin(self, member: _Member) -> bool:
        return member.position <= self._slowest() + self.most_ahead * self.steps

    def _begin(self, member: _Member) -> Block:
        steps = min(self.steps, self._limit - member.position)
        where = self._segment, self._epoch, member.position, steps
        member.block = Block(*where, member.share, self.version)
        return member.block

    def _accept(self, member: _Member, block: Block, delivery: Delivery) -> None:
        member.block = None
        train_s = delivery.numbers["train_s"]
        member.speed = delivery.utterances / train_s if train_s else member.speed
        if member.share is None or block.segment != self._segment:
            lost = {"rank": member.rank, "lost_utterances": delivery.utterances}
            self._events.append(("worker_late", lost))
            self._cut()  # it may join the next segment
            self._changed.notify_all()
            return
        member.position += delivery.steps
        if delivery.ends:
            self._limit = min(self._limit, member.position)
        self._delivered.append(replace(delivery, staleness=self.version - block.version))
        if self.asynchronous:
            part = delivery.utterances / max(delivery.of_utterances, 1)
            for weight, change in zip(self.weights, delivery.changes, strict=True):
                weight += part * change
            self.version += 1
        self._changed.notify_all()

    def _late(self, member: _Member) -> bool:
        return member.share is not None and member.position < self._limit

    def _wait(self, done: Callable[[], bool], late: Callable[[_Member], bool]) -> list[int]:
        """Waits for the late, at most `timeout_s`; then leaves them out and returns their ranks."""
        deadline_s = time.monotonic() + self.timeout_s
        while not self._changed.wait_for(done, _LOOK_S):
            if time.monotonic() < deadline_s:
                continue
            left = [m for m in self._members.values() if m.rank and m.share and late(m)]
            for member in left:
                self._leave_out(member, f"silent for {self.timeout_s:.0f} s")
            return [member.rank for member in left]
        return []

    def _leave_out(self, member: _Member, why: str) -> None:
        took_part, member.share = member.share is not None and self._late(member), None
        log.warning("%s is left out: %s", self._cluster.name(member.rank), why)
        self._events.append(("worker_left", {"rank": member.rank, "why": why}))
        if took_part:
            self._cut()
        self._changed.notify_all()

    def _remove(self, member: _Member, why: str) -> None:
        with self._changed:
            if self._gone(member):
                return
            del self._members[member.rank]
            if self._end is None:
                self._leave_out(member, why)
            self._changed.notify_all()

    def _cut(self) -> None:
        if self.asynchronous:
            begun = [
                member.block.step + member.block.steps if member.block else member.position
                for member in self._members.values()
                if member.share
            ]
            self._limit = min(self._limit, max(begun, default=self._limit))
