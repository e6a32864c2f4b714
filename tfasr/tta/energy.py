"""Energy by interval: combines samples of energy counters with the ledger's intervals."""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfasr.kit.files import ENERGY_FILE, opened
from tfasr.ledger.intervals import INTERVALS, Piece, metadata
from tfasr.ledger.timeline import Timeline

ENERGY_COLUMNS = ("time_ms", "session", "mono_s", "counter", "joules", "range_joules")
MAX_GAP_S = 30.0
"""Longest gap between samples that counts; in a longer one RAPL's 262 kJ may wrap twice."""
MOST_W = 2000.0
"""More than any processor or GPU draws; a counter that rises faster began again or jumped."""
MOST_SUSPENDED_S = 1.0
"""How far the wall clock may move away from the monotonic clock between two samples.

The monotonic clock stands still while a machine sleeps, and counters may go on or begin again.
"""
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class EnergySample:
    time_ms: float  # wall clock
    session: int
    mono_s: float  # the session's monotonic clock, as in the ledger
    counter: str  # "package-0", "package-0/dram", "gpu0", ...
    joules: float  # from an arbitrary zero
    # Where the counter restarts from 0; None if it never does.
    range_joules: float | None


@dataclass(frozen=True)
class EnergySpan:
    """Joules of all counters together in part of a run; times are on the run's clock."""

    start_us: int
    stop_us: int
    joules: float


@dataclass(frozen=True)
class EnergyUse:
    """The measured energy of a run, or of its beginning."""

    # By interval; None if not measured in that interval.
    joules: dict[str, float | None]
    unknown_s: dict[str, float]  # by interval, seconds without a measurement
    counters: list[str]  # measured ones; fans and disks, for example, have none

    @property
    def total_joules(self) -> float:
        """All measured joules; a lower bound if some seconds are unknown."""
        return math.fsum(
            joules for joules in self.joules.values() if joules is not None
        )

    @property
    def total_unknown_s(self) -> float:
        return math.fsum(self.unknown_s.values())


def read_samples(path: str | Path) -> list[EnergySample]:
    """Reads ``energy.csv``, given as a file or its run folder, without incomplete lines."""
    path = Path(path)
    path = path / ENERGY_FILE if path.is_dir() else path
    if not path.is_file():
        return []
    with opened(path) as file:
        rows = (line.decode(errors="replace").rstrip("\n").split(",") for line in file)
        return [sample for row in rows if (sample := _sample(row)) is not None]


def energy_spans(
    samples: Iterable[EnergySample], timeline: Timeline
) -> list[EnergySpan]:
    """Returns the energy between neighbouring samples, on the run's clock.

    Spans are in order and don't overlap, and lie between a session's first and last
    event. Gaps longer than `MAX_GAP_S` are left out, and so are spans in which a
    counter appeared, vanished, fell without a known range or rose by more than
    `MOST_W`, or in which the wall clock and the monotonic clock moved apart by more
    than `MOST_SUSPENDED_S`.
    """
    by_session = _by_session(samples)
    spans: list[EnergySpan] = []
    events = timeline.events
    clock = timeline.clock_us
    for session in timeline.sessions:
        first = events[session.start]
        in_session = by_session.get(metadata(first).get("session", 0), [])
        begin = clock[session.start]
        end = clock[min(session.stop, len(clock) - 1)]
        mono_s = metadata(first).get("mono_s")
        began_us = first["time_ms"] * 1000 if mono_s is None else round(mono_s * 1e6)
        for start, stop, joules in _steps(
            in_session, mono_s is not None, begin - began_us
        ):
            low = max(start, begin)
            high = min(stop, end)
            if high > low:
                share = (high - low) / (stop - start)
                spans.append(EnergySpan(low, high, joules * share))

    return spans


def energy_use(
    spans: Sequence[EnergySpan],
    pieces: Sequence[Piece],
    counters: Iterable[str] = (),
    *,
    until_us: float = math.inf,
) -> EnergyUse | None:
    """Returns a run's energy by interval, or None if nothing was measured.

    A span's energy is spread evenly over its time; what comes after ``until_us`` is
    left out.
    """
    joules = dict.fromkeys(INTERVALS, 0.0)
    known_us = dict.fromkeys(INTERVALS, 0)
    total_us = dict.fromkeys(INTERVALS, 0)
    position = 0
    for name, start, stop in pieces:
        stop = min(stop, until_us)
        if stop <= start:
            break
        total_us[name] += stop - start
        while position < len(spans) and spans[position].stop_us <= start:
            position += 1
        index = position
        while index < len(spans) and spans[index].start_us < stop:
            span = spans[index]
            shared = min(stop, span.stop_us) - max(start, span.start_us)
            joules[name] += span.joules * shared / (span.stop_us - span.start_us)
            known_us[name] += shared
            index += 1

    if not any(known_us.values()):
        return None
    return EnergyUse(
        {
            name: joules[name] if known_us[name] or not total_us[name] else None
            for name in joules
        },
        {name: (total_us[name] - known_us[name]) / 1e6 for name in joules},
        sorted(set(counters)),
    )


def used_joules(samples: Iterable[EnergySample]) -> float | None:
    sessions = _by_session(samples).values()
    joules = [used for session in sessions for _, _, used in _steps(session, True, 0.0)]
    return math.fsum(joules) if joules else None


def _by_session(samples: Iterable[EnergySample]) -> dict[int, list[EnergySample]]:
    by_session: dict[int, list[EnergySample]] = {}
    for sample in samples:
        by_session.setdefault(sample.session, []).append(sample)
    return by_session


def energy_of_hosts(
    hosts: Sequence[tuple[Sequence[EnergySpan], Iterable[str]]],
    pieces: Sequence[Piece],
    *,
    until_us: float = math.inf,
) -> EnergyUse | None:
    """Combines the energy of hosts that ran at the same time, as `energy_use` does for one.

    ``hosts``: spans and counters of each. A second is known only if all hosts measured
    it; None if there is no such second.
    """
    uses = [
        energy_use(spans, pieces, names, until_us=until_us) for spans, names in hosts
    ]
    measured_by_all = functools.reduce(_overlaps, (spans for spans, _ in hosts))
    of_all = energy_use(measured_by_all, pieces, until_us=until_us)
    if of_all is None:
        return None
    joules = {}
    for name in uses[0].joules:
        each = [use.joules[name] for use in uses]
        joules[name] = None if None in each else math.fsum(each)

    counters = sorted(counter for use in uses for counter in use.counters)
    return EnergyUse(joules, of_all.unknown_s, counters)


def _overlaps(
    spans: Sequence[EnergySpan], other_spans: Sequence[EnergySpan]
) -> list[EnergySpan]:
    """Returns the time covered by both lists of ordered spans, with 0 joules."""
    shared = []
    index = 0
    other_index = 0
    while index < len(spans) and other_index < len(other_spans):
        a = spans[index]
        b = other_spans[other_index]
        low = max(a.start_us, b.start_us)
        high = min(a.stop_us, b.stop_us)
        if high > low:
            shared.append(EnergySpan(low, high, 0.0))
        index, other_index = (
            (index + 1, other_index)
            if a.stop_us <= b.stop_us
            else (index, other_index + 1)
        )

    return shared


def _sample(row: Sequence[str]) -> EnergySample | None:
    if len(row) != len(ENERGY_COLUMNS):
        return None
    try:
        time_ms = float(row[0])
        mono_s = float(row[2])
        joules = float(row[4])
        limit = float(row[5]) if row[5] else None
        finite = all(map(math.isfinite, (time_ms, mono_s, joules, limit or 0)))
        sample = EnergySample(time_ms, int(row[1]), mono_s, row[3], joules, limit)
    except ValueError:  # the header, or an incomplete line
        return None

    return sample if finite else None


def _steps(
    samples: Iterable[EnergySample], monotonic: bool, offset: float
) -> Iterator[tuple[int, int, float]]:
    """Yields the time of one sweep over the counters, that of the next, and the joules
    between.
    """
    before: tuple[int, Mapping[str, EnergySample]] | None = None
    for (mono_s, time_ms), group in itertools.groupby(
        samples, lambda s: (s.mono_s, s.time_ms)
    ):
        sweep = {sample.counter: sample for sample in group}
        now = round((mono_s * 1e6 if monotonic else time_ms * 1000) + offset)
        if before is not None and 0 < now - before[0] <= MAX_GAP_S * 1e6:
            joules = _used(before[1], sweep)
            if joules is not None:
                yield before[0], now, joules

        if before is None or now > before[0]:
            before = now, sweep


def _used(
    before: Mapping[str, EnergySample], after: Mapping[str, EnergySample]
) -> float | None:
    """Returns the joules between two sweeps over the counters, or None if they are unknown."""
    if before.keys() != after.keys():
        return None
    joules = [_rise(before[name], sample) for name, sample in after.items()]
    return None if None in joules else math.fsum(joules)


def _rise(before: EnergySample, after: EnergySample) -> float | None:
    """Returns how far a counter rose, or None if it isn't the energy of the time between."""
    wall_s = (after.time_ms - before.time_ms) / 1000
    mono_s = after.mono_s - before.mono_s
    if abs(wall_s - mono_s) > MOST_SUSPENDED_S:
        return None
    joules = after.joules - before.joules
    if joules < 0 and after.range_joules is not None:
        joules += after.range_joules
    if not 0 <= joules <= MOST_W * mono_s:
        return None
    return joules
