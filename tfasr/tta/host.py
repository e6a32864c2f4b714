"""What the machine gave a run: reads ``host.csv`` and books its counters to the
ledger's intervals.

The clocks of times to accuracy stay wall clocks: what is computed here explains them,
and changes none. A *lost* processor second is one in which a thread of the run was
ready to work and the machine gave the processor to somebody else: the hypervisor to
another virtual machine (steal), a control group's quota to nobody (throttling), the
scheduler to another program (competition).
"""

import csv
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr.kit.files import HOST_FILE
from tfasr.ledger.intervals import INTERVALS
from tfasr.ledger.timeline import Timeline


@dataclass(frozen=True)
class HostReading:
    """The machine's counters at one moment, each from an arbitrary zero; None if unknown.

    Seconds are processor seconds, except for stalls. The fields are the columns of
    ``host.csv``, one for each counter.
    """

    ran_s: float | None  # of this process and its children
    kernel_s: float | None  # those of them in which the kernel worked for them
    waited_s: float | None  # their threads were ready to run and had no processor
    throttled_s: float | None  # a control group's quota was used up
    # Both add up the processors that this process may use.
    stolen_s: float | None  # the hypervisor ran something else
    busy_s: float | None  # they worked, for whatever process
    # Some process waited for memory, in wall-clock seconds.
    memory_stalled_s: float | None
    io_stalled_s: float | None  # some process waited for a disk, in wall-clock seconds
    # This process lost a processor before it was done.
    involuntary_switches: float | None
    major_faults: float | None  # pages that this process had to read from a disk
    swapped_in_bytes: float | None  # of the whole machine
    mhz: float | None  # clock rate at this moment, not a counter
    thermal_throttles: float | None  # processors were slowed down because they were hot


COUNTERS = tuple(field.name for field in dataclasses.fields(HostReading))
HOST_COLUMNS = ("time_ms", "session", "mono_s", *COUNTERS)
LONGEST_SPAN_S = 2.0  # between samples of a process that isn't stopped
_NEAR_US = 1e6  # by which the first and last look of a session may lie outside it

# Below this share of the processors a run counts as disturbed, and reports name it.
UNDISTURBED_SHARE = 0.9

# What takes processors or time from a run, by the names of `HostUse`'s seconds
CAUSES = {
    "stolen_s": "other virtual machines on its host (steal)",
    "throttled_s": "the quota of its control group",
    "competed_s": "other programs",
    "stopped_s": "a stop of the whole process",
    "low_memory_s": "too little memory",
}

# In wall-clock seconds: all threads stand still.
WHOLE = ("stopped_s", "low_memory_s")


@dataclass(frozen=True)
class HostUse:
    """What the machine gave a run during an interval such as "train"; None means unknown."""

    wall_s: float  # seconds of the interval that samples cover
    unknown_s: float  # seconds of it that they don't
    ran_s: float  # processor seconds that the run got
    stolen_s: float | None  # lost to the hypervisor
    throttled_s: float | None  # lost to a quota
    competed_s: float | None  # lost to other programs on the machine
    stopped_s: float  # wall-clock seconds in which the whole process stood still
    low_memory_s: float | None  # wall-clock seconds that too little memory cost it
    # Wall-clock seconds in which some process waited for a disk.
    io_stalled_s: float | None
    thermal_throttles: float | None
    slowest_mhz: float | None

    @property
    def lost_s(self) -> float:
        """Processor seconds that the run could have used and didn't get."""
        causes = (self.stolen_s, self.throttled_s, self.competed_s)
        return math.fsum(seconds for seconds in causes if seconds is not None)

    @property
    def share(self) -> float:
        """The part of the processor seconds it wanted that the run got, from 0 to 1.

        Time for which the process was stopped or lacked memory counts as lost.
        """
        wanted_s = self.ran_s + self.lost_s
        got = self.ran_s / wanted_s if wanted_s else 1.0
        still_s = self.stopped_s + (self.low_memory_s or 0.0)
        moving = max(1 - still_s / self.wall_s, 0.0) if self.wall_s else 1.0
        return got * moving

    @property
    def undisturbed_s(self) -> float:
        """About how long the interval would have taken with all processors it wanted,
        in seconds.

        It assumes that losses slow all threads down alike.
        """
        return self.wall_s * self.share

    @property
    def disturbed(self) -> bool:
        return self.share < UNDISTURBED_SHARE

    def causes(self) -> list[tuple[str, float]]:
        """Returns the causes of lost processors or time with their shares of the
        interval, largest first.
        """
        wanted_s = self.ran_s + self.lost_s
        shares = []
        for name, cause in CAUSES.items():
            whole_s = self.wall_s if name in WHOLE else wanted_s
            shares.append((cause, _part(getattr(self, name), whole_s)))

        return sorted(shares, key=lambda item: -item[1])


def _part(amount: float | None, whole: float) -> float:
    return amount / whole if amount and whole else 0.0


def disturbance(use: HostUse) -> str:
    """Returns a sentence about a run whose steps the machine slowed down, and by what."""
    named = [f"{cause} {share:.0%}" for cause, share in use.causes() if share >= 0.01]
    return (
        f"the machine took {1 - use.share:.0%} of what its steps could have used "
        f"({', '.join(named)}); undisturbed they would have taken about {use.undisturbed_s:.0f} s "
        f"instead of {use.wall_s:.0f} s"
    )


def undisturbed_part(samples: dict[int, np.ndarray], timeline: Timeline) -> float:
    """Returns which part of its time a run would about have taken on an undisturbed machine.

    Everything after the initialisation counts; 1 if the run has no ``samples``, see
    `read_host_file`.
    """
    counted = [name for name in INTERVALS if name != "init"]
    use = host_use(samples, timeline, counted)
    return 1.0 if use is None else use.share


def whole_use(samples: dict[int, np.ndarray]) -> HostUse | None:
    """Returns a process's whole use of the machine; None without two samples."""
    spans = []
    for in_session in samples.values():
        lengths_s = np.diff(in_session[:, 0])
        if lengths_s.size:
            spans.append(
                (in_session[:-1, 0], lengths_s, lengths_s, _spent(in_session[:, 1:]))
            )

    if not spans:
        return None

    return _use(
        _Spans(*(np.concatenate(parts) for parts in zip(*spans, strict=True))), 0.0
    )


def read_host_file(run_dir: str | Path, file: str = HOST_FILE) -> dict[int, np.ndarray]:
    """Reads a run folder's ``host.csv``, or the file of a worker.

    Returns:
        For each session an array (samples, 1 + counters): the sample's ``mono_s``, then
            the values
        of `COUNTERS`, NaN where unknown. Damaged lines are left out, and so are samples
            whose clock
        doesn't rise. Empty if the run has no such file.
    """
    path = Path(run_dir) / file
    if not path.is_file():
        return {}

    rows: dict[int, list[list[float]]] = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for session, values in _samples(file):
            in_session = rows.setdefault(session, [])
            if not in_session or values[0] > in_session[-1][0]:
                in_session.append(values)

    return {session: np.array(values) for session, values in rows.items()}


def _samples(lines: Iterator[str]) -> Iterator[tuple[int, list[float]]]:
    for row in csv.DictReader(lines):
        try:
            session = int(row["session"])
            values = [float(row["mono_s"])]
            for name in COUNTERS:
                cell = row.get(name)
                values.append(float(cell) if cell else math.nan)
        except (KeyError, TypeError, ValueError):  # an incomplete or damaged line
            continue

        if math.isfinite(values[0]):
            yield session, values


def host_use(
    samples: dict[int, np.ndarray],
    timeline: Timeline,
    intervals: Sequence[str] = ("train",),
    *,
    until_s: float = math.inf,
) -> HostUse | None:
    """Returns a run's use of the machine in some of the ledger's intervals.

    Between two samples, a counter's increase is spread evenly over time.

    Args:
        samples: of `read_host_file`.
        timeline: the run's events.
        intervals: names of `tfasr.ledger.intervals.INTERVALS`.
        until_s: seconds after the model's creation; what is later doesn't count.

    Returns:
        None if no sample lies in these intervals.
    """
    edges_us, within_us = _time_within(timeline, intervals)
    until_us = timeline.zero_us + until_s * 1e6
    within_us = np.minimum(within_us, np.interp(until_us, edges_us, within_us))
    spans = _spans(samples, timeline, edges_us, within_us)
    if spans is None or not spans.covered_s.sum():
        return None
    unknown_s = float(within_us[-1]) / 1e6 - float(spans.covered_s.sum())
    return _use(spans, unknown_s=max(unknown_s, 0.0))


def taken_over_time(
    samples: dict[int, np.ndarray], timeline: Timeline, bins: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the shares that the machine took from a run over time, for a figure.

    Returns:
        The edges of equally long bins, ``(bins + 1,)``, in seconds since the model's
            creation; and
        by cause (`CAUSES`) the part of what the run wanted that it lost, ``(bins,)``.
    """
    edges_s = np.linspace(0.0, max(timeline.elapsed_s[-1], 1e-6), bins + 1)
    edges_us, within_us = _time_within(timeline, INTERVALS)
    spans = _spans(samples, timeline, edges_us, within_us)
    taken = {name: np.zeros(bins) for name in CAUSES}
    if spans is None:
        return edges_s, taken

    # Counters are spread evenly between their samples.
    lost_s = _lost_s(spans)
    starts_s = spans.starts_s - timeline.zero_us / 1e6
    stops_s = starts_s + spans.lengths_s
    wanted_s = np.nan_to_num(spans.of("ran_s"))
    wanted_s = wanted_s + sum(
        np.nan_to_num(lost_s[name]) for name in CAUSES if name not in WHOLE
    )
    for name in CAUSES:
        whole_s = spans.lengths_s if name in WHOLE else wanted_s
        amount = _binned(np.nan_to_num(lost_s[name]), starts_s, stops_s, edges_s)
        whole_binned_s = _binned(whole_s, starts_s, stops_s, edges_s)
        taken[name] = np.divide(
            amount, whole_binned_s, out=np.zeros(bins), where=whole_binned_s > 0
        )

    return edges_s, taken


def _binned(
    amounts: np.ndarray, starts_s: np.ndarray, stops_s: np.ndarray, edges_s: np.ndarray
) -> np.ndarray:
    """Returns the sums in bins of amounts that are each spread over a time, in rising
    order.
    """
    at_s = np.column_stack([starts_s, stops_s]).ravel()
    done = np.cumsum(amounts)
    reached = np.column_stack([done - amounts, done]).ravel()
    return np.diff(np.interp(edges_s, np.maximum.accumulate(at_s), reached))


@dataclass(frozen=True)
class _Spans:
    """The times between neighbouring samples."""

    starts_s: np.ndarray  # (spans,) on the run's clock
    lengths_s: np.ndarray  # (spans,)
    covered_s: np.ndarray  # (spans,) the part that lies in the intervals asked for
    spent: np.ndarray  # (spans, counters) increases; the clock rate itself

    def of(self, name: str) -> np.ndarray:
        return self.spent[:, COUNTERS.index(name)]

    def total(self, values: np.ndarray) -> float | None:
        """Sums values of spans by the part that counts; None if no span knows them."""
        is_known = ~np.isnan(values) & (self.covered_s > 0)
        if not is_known.any():
            return None
        parts = self.covered_s[is_known] / self.lengths_s[is_known]
        return float((values[is_known] * parts).sum())


def _time_within(
    timeline: Timeline, intervals: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns points of the run's clock, and how much of it had passed in some
    intervals by then.

    Both are microseconds ``(points,)``.
    """
    edges_us = [0]
    within_us = [0]
    for name, start_us, stop_us in timeline.pieces:
        length_us = stop_us - start_us if name in intervals else 0
        edges_us.append(stop_us)
        within_us.append(within_us[-1] + length_us)

    return np.array(edges_us, dtype=float), np.array(within_us, dtype=float)


def _on_run_clock(
    samples: dict[int, np.ndarray], timeline: Timeline
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields for each session its samples' times on the run's clock, and their counters.

    A session's first look precedes its first event, and its last look follows its last
    event, by milliseconds. Both belong to it, so that the samples cover all of it. The
    third array has the times again, cut to the session's beginning and end.
    """
    for session in timeline.sessions:
        about = timeline.metadata[session.start]
        in_session = samples.get(about.get("session", 0))
        mono_s = about.get("mono_s")
        if in_session is None or mono_s is None:
            continue
        begin_us = timeline.clock_us[session.start]
        end_us = timeline.clock_us[session.stop - 1]
        times_us = (in_session[:, 0] - mono_s) * 1e6 + begin_us
        near = (times_us >= begin_us - _NEAR_US) & (times_us <= end_us + _NEAR_US)
        if near.sum() > 1:
            times_us = times_us[near]
            yield times_us, in_session[near, 1:], np.clip(times_us, begin_us, end_us)


def _spans(
    samples: dict[int, np.ndarray],
    timeline: Timeline,
    edges_us: np.ndarray,
    within_us: np.ndarray,
) -> _Spans | None:
    """Returns the spans of all sessions, with the part of each that `_time_within` counts."""
    spans = []
    for times_us, values, inside_us in _on_run_clock(samples, timeline):
        covered_us = np.diff(np.interp(inside_us, edges_us, within_us))
        starts_s = times_us[:-1] / 1e6
        spans.append(
            (starts_s, np.diff(times_us) / 1e6, covered_us / 1e6, _spent(values))
        )

    if not spans:
        return None

    return _Spans(*(np.concatenate(parts) for parts in zip(*spans, strict=True)))


def _spent(values: np.ndarray) -> np.ndarray:
    """Returns the increases of counters ``(samples, counters)`` between samples."""
    spent = np.diff(values, axis=0)
    # Counters that fell belong to another process, such as a child that has ended.
    spent[spent < 0] = 0.0
    spent[:, COUNTERS.index("mhz")] = values[1:, COUNTERS.index("mhz")]
    return spent


def _lost_s(spans: _Spans) -> dict[str, np.ndarray]:
    """Returns the seconds that each of `CAUSES` took in each span, NaN where unknown."""
    ran_s = np.nan_to_num(spans.of("ran_s"))

    # Threads of a run that has more of them than processors wait for each other, which
    # costs nothing. What they lose is bounded by what others did meanwhile.
    waited_s = spans.of("waited_s")
    throttled_s = np.fmin(spans.of("throttled_s"), waited_s)
    others_s = np.maximum(spans.of("busy_s") - ran_s, 0.0)
    competed_s = np.minimum(waited_s - np.nan_to_num(throttled_s), others_s)

    low_memory_s = _low_memory_s(spans)

    return {
        "stolen_s": _own_part(spans.of("stolen_s"), ran_s, spans.of("busy_s")),
        "throttled_s": throttled_s,
        "competed_s": np.maximum(competed_s, 0.0),
        "stopped_s": _stopped_s(spans, np.nan_to_num(low_memory_s)),
        "low_memory_s": low_memory_s,
    }


def _use(spans: _Spans, unknown_s: float) -> HostUse:
    lost_s = _lost_s(spans)

    return HostUse(
        wall_s=float(spans.covered_s.sum()),
        unknown_s=unknown_s,
        ran_s=spans.total(np.nan_to_num(spans.of("ran_s"))) or 0.0,
        stolen_s=spans.total(lost_s["stolen_s"]),
        throttled_s=spans.total(lost_s["throttled_s"]),
        competed_s=spans.total(lost_s["competed_s"]),
        stopped_s=spans.total(lost_s["stopped_s"]) or 0.0,
        low_memory_s=spans.total(lost_s["low_memory_s"]),
        io_stalled_s=spans.total(spans.of("io_stalled_s")),
        thermal_throttles=spans.total(spans.of("thermal_throttles")),
        slowest_mhz=_least(spans.of("mhz")[spans.covered_s > 0]),
    )


def _own_part(
    stolen_s: np.ndarray, ran_s: np.ndarray, busy_s: np.ndarray
) -> np.ndarray:
    """Returns this run's part of stolen time: what is stolen hits whoever is running."""
    part = np.divide(ran_s, busy_s, out=np.ones_like(ran_s), where=busy_s > 0)
    return stolen_s * np.clip(part, 0.0, 1.0)


def _low_memory_s(spans: _Spans) -> np.ndarray:
    """Returns for each span the wall-clock seconds that too little memory cost the run.

    A run that lacks memory loses pages that it needs again. It waits until the kernel
    has found memory for them, waits for the disk, and the kernel works meanwhile: all
    three count. Pressure is that of the whole machine or group, so nothing counts in
    spans in which the run read no page from a disk. What the kernel does for a run
    in any case, such as reading its data, is little beside that and counts too.
    """
    stalled_s = spans.of("memory_stalled_s")
    disk_s = np.nan_to_num(spans.of("io_stalled_s"))
    kernel_s = np.nan_to_num(spans.of("kernel_s"))
    lost_s = np.minimum(stalled_s + disk_s + kernel_s, spans.lengths_s)

    # An unknown stall stays unknown.
    has_enough = (stalled_s == 0) | (spans.of("major_faults") == 0)
    return np.where(has_enough, stalled_s * 0.0, lost_s)


def _stopped_s(spans: _Spans, low_memory_s: np.ndarray) -> np.ndarray:
    """Returns for each span the seconds in which the whole process stood still.

    The sampler looks once a second. If it did not for longer, and no thread of the run
    ran or waited for a processor or for memory meanwhile, the process was stopped, or
    the computer slept.
    """
    used_s = (
        low_memory_s
        + np.nan_to_num(spans.of("ran_s"))
        + np.nan_to_num(spans.of("waited_s"))
    )
    still_s = np.maximum(spans.lengths_s - used_s, 0.0)
    return np.where(spans.lengths_s > LONGEST_SPAN_S, still_s, 0.0)


def _least(values: np.ndarray) -> float | None:
    measured = values[~np.isnan(values)]
    return float(measured.min()) if measured.size else None
