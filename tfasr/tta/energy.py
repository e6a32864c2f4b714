"""Energy by interval: combines samples of energy counters with the ledger's intervals.

`tfasr.telemetry` samples the counters into ``energy.csv``. Here the samples become
spans of the run's clock with their joules (`energy_spans`), and these are shared out
among the intervals that they overlap (`energy_use`).
"""

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
"""The columns of ``energy.csv``, the fields of `EnergySample`."""

MAX_GAP_S = 30.0
"""Longest gap between samples that counts; in a longer one RAPL's 262 kJ may wrap twice."""
MOST_W = 2000.0
"""More than any processor or GPU draws; a counter that rises faster began again or jumped."""
MOST_SUSPENDED_S = 1.0
"""How far the wall clock may move away from the monotonic clock between two samples.

The monotonic clock stands still while a machine sleeps, and counters may go on or begin
again.
"""
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class EnergySample:
    """The state of one counter at one moment, a line of ``energy.csv``.

    All counters that were read together have the same times.
    """

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
        """All seconds without a measurement."""
        return math.fsum(self.unknown_s.values())


def read_samples(path: str | Path) -> list[EnergySample]:
    """Reads ``energy.csv``, without incomplete lines.

    Args:
        path: the file, or the run folder that holds it.

    Returns:
        The samples in the order of the file; [] if it is missing.
    """
    path = Path(path)
    if path.is_dir():
        path = path / ENERGY_FILE

    if not path.is_file():
        return []

    with opened(path) as file:
        rows = (line.decode(errors="replace").rstrip("\n").split(",") for line in file)
        return [sample for sample in map(_sample, rows) if sample is not None]


def energy_spans(
    samples: Iterable[EnergySample], timeline: Timeline
) -> list[EnergySpan]:
    """Returns the energy between neighbouring samples, on the run's clock.

    Spans are in order and don't overlap, and lie between a session's first and last
    event. Gaps longer than `MAX_GAP_S` are left out, and so are spans in which a
    counter appeared, vanished, fell without a known range or rose by more than
    `MOST_W`, or in which the wall clock and the monotonic clock moved apart by more
    than `MOST_SUSPENDED_S`.

    Args:
        samples: of one machine, in the order of the file.
        timeline: the run during which they were taken.
    """
    by_session = _by_session(samples)
    spans: list[EnergySpan] = []
    clock = timeline.clock_us
    for session in timeline.sessions:
        first = timeline.events[session.start]
        about = metadata(first)
        in_session = by_session.get(about.get("session", 0), [])
        begin = clock[session.start]
        end = clock[min(session.stop, len(clock) - 1)]

        # Samples and the ledger share a clock. What it read at the session's first event
        # is the difference to the run's clock.
        monotonic = about.get("mono_s") is not None
        began_us = first["time_ms"] * 1000
        if monotonic:
            began_us = round(about["mono_s"] * 1e6)

        for start, stop, joules in _steps(in_session, monotonic, begin - began_us):
            # The first and the last span may reach beyond the session.
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

    A span's energy is spread evenly over its time.

    Args:
        spans: from `energy_spans`.
        pieces: the run's intervals, from `Timeline.pieces`.
        counters: the names of what was measured.
        until_us: what comes after this time of the run's clock is left out.
    """
    joules: dict[str, float | None] = dict.fromkeys(INTERVALS, 0.0)
    known_us = dict.fromkeys(INTERVALS, 0)
    total_us = dict.fromkeys(INTERVALS, 0)
    position = 0  # of the first span that isn't over before the piece
    for name, start, stop in pieces:
        stop = min(stop, until_us)
        if stop <= start:
            break

        # Pieces and spans are both in order, so what is over stays over.
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

    # An interval that took no time used no energy; one that wasn't measured is unknown.
    for name in INTERVALS:
        if total_us[name] and not known_us[name]:
            joules[name] = None

    return EnergyUse(
        joules=joules,
        unknown_s={name: (total_us[name] - known_us[name]) / 1e6 for name in INTERVALS},
        counters=sorted(set(counters)),
    )


def used_joules(samples: Iterable[EnergySample]) -> float | None:
    """Returns the joules that all samples together show.

    It needs no ledger: gaps are left out as in `energy_spans`. The result is None if
    nothing was measured.
    """
    joules = [
        used
        for session in _by_session(samples).values()
        for _, _, used in _steps(session, monotonic=True, offset_us=0.0)
    ]
    if not joules:
        return None

    return math.fsum(joules)


def _by_session(samples: Iterable[EnergySample]) -> dict[int, list[EnergySample]]:
    """Returns each session's samples in their order."""
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

    Args:
        hosts: spans and counters of each.
        pieces: the run's intervals.
        until_us: what comes after this time of the run's clock is left out.

    Returns:
        A second is known only if all hosts measured it; None if there is no such second.
    """
    uses = [
        energy_use(spans, pieces, names, until_us=until_us) for spans, names in hosts
    ]
    measured_by_all = functools.reduce(_overlaps, (spans for spans, _ in hosts))
    of_all = energy_use(measured_by_all, pieces, until_us=until_us)
    if of_all is None:
        return None

    joules: dict[str, float | None] = {}
    for name in INTERVALS:
        each = [use.joules[name] for use in uses]
        joules[name] = None
        if None not in each:
            joules[name] = math.fsum(each)

    counters = sorted(counter for use in uses for counter in use.counters)
    return EnergyUse(joules, of_all.unknown_s, counters)


def _overlaps(
    spans: Sequence[EnergySpan], other_spans: Sequence[EnergySpan]
) -> list[EnergySpan]:
    """Returns the time covered by both lists of spans, with 0 joules.

    Args:
        spans: spans in order that don't overlap.
        other_spans: others of this kind.
    """
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

        # The span that ends first can't overlap a later one.
        if a.stop_us <= b.stop_us:
            index += 1
        else:
            other_index += 1

    return shared


def _sample(row: Sequence[str]) -> EnergySample | None:
    """Parses a line of ``energy.csv``.

    It returns None for the heading, an incomplete line, and numbers that aren't finite.
    """
    if len(row) != len(ENERGY_COLUMNS):
        return None

    time_ms, session, mono_s, counter, joules, range_joules = row
    try:
        sample = EnergySample(
            time_ms=float(time_ms),
            session=int(session),
            mono_s=float(mono_s),
            counter=counter,
            joules=float(joules),
            range_joules=float(range_joules) if range_joules else None,
        )
    except ValueError:
        return None

    numbers = (sample.time_ms, sample.mono_s, sample.joules, sample.range_joules or 0)
    if not all(map(math.isfinite, numbers)):
        return None

    return sample


def _steps(
    samples: Iterable[EnergySample], monotonic: bool, offset_us: float
) -> Iterator[tuple[int, int, float]]:
    """Yields the time of one sweep over the counters, that of the next, and the joules
    between.

    Args:
        samples: of one session, in order.
        monotonic: whether to read the session's monotonic clock, else the wall clock.
        offset_us: what makes such a time one of the run's clock.
    """
    before: tuple[int, Mapping[str, EnergySample]] | None = None
    sweeps = itertools.groupby(samples, lambda sample: (sample.mono_s, sample.time_ms))
    for (mono_s, time_ms), group in sweeps:
        sweep = {sample.counter: sample for sample in group}
        now_us = time_ms * 1000
        if monotonic:
            now_us = mono_s * 1e6

        now = round(now_us + offset_us)
        if before is None:
            before = (now, sweep)
            continue

        then, earlier = before
        if 0 < now - then <= MAX_GAP_S * 1e6:
            joules = _used(earlier, sweep)
            if joules is not None:
                yield then, now, joules

        if now > then:
            before = (now, sweep)


def _used(
    before: Mapping[str, EnergySample], after: Mapping[str, EnergySample]
) -> float | None:
    """Returns the joules between two sweeps over the counters.

    They are unknown, None, if one counter's are, or if the sweeps read other counters.

    Args:
        before: the samples of the first sweep, by counter.
        after: those of the next one.
    """
    if before.keys() != after.keys():
        return None

    joules = [_rise(before[name], sample) for name, sample in after.items()]
    if None in joules:
        return None

    return math.fsum(joules)


def _rise(before: EnergySample, after: EnergySample) -> float | None:
    """Returns the joules by which a counter rose between two samples.

    They are None if they can't be the energy of the time between: the machine slept, or
    the counter began again or jumped.
    """
    wall_s = (after.time_ms - before.time_ms) / 1000
    mono_s = after.mono_s - before.mono_s
    if abs(wall_s - mono_s) > MOST_SUSPENDED_S:
        return None

    # A counter that has a range restarted from 0, at most once in so short a time.
    joules = after.joules - before.joules
    if joules < 0 and after.range_joules is not None:
        joules += after.range_joules

    if not 0 <= joules <= MOST_W * mono_s:
        return None

    return joules
