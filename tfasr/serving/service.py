"""What all clients share: the recogniser, its threads and the limits."""

import asyncio
import bisect
import contextlib
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from tfasr.errors import UsageError
from tfasr.recognising.recogniser import Recogniser
from tfasr.recognising.stream import EndpointRules

_LATENCIES_S = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0, math.inf)
_LARGEST = 1e9  # of any limit: 31 years, or a million gigabytes


@dataclass(frozen=True)
class Limits:
    """Bounds that keep memory, disk and time finite whatever clients do; all must be positive."""

    max_streams: int = 16  # at once, and as many files
    max_stream_s: float = 3600.0  # of a stream, and of the time in which a file must have come
    max_upload_mb: float = 500.0  # of a file, millions of bytes
    max_upload_s: float = 4 * 3600.0  # of the audio in a file
    max_message_bytes: int = 1 << 18  # in a stream; 262144 are 8 s at 16 kHz
    idle_s: float = 30.0  # a client that sends or reads nothing for so long is disconnected

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value <= _LARGEST:
                message = f"--{field.name} must be more than 0, at most {_LARGEST:g}."
                raise UsageError(f"{message} Received: {value}.")

    @property
    def max_upload_bytes(self) -> int:
        return int(self.max_upload_mb * 1e6)


class RefusedError(Exception):
    """Why a client's request (HTTP status) or stream (RFC 6455, section 7.4.1) ends."""

    def __init__(self, message: str, *, code: int = 1008, status: int = 400):
        super().__init__(message)
        self.code = code
        self.status = status


@contextlib.contextmanager
def client_may_leave(request: Any) -> Iterator[None]:
    """Ends the block if the client is gone, or doesn't read and can't be answered."""
    try:
        yield
    except ConnectionError:
        pass
    except asyncio.TimeoutError:
        if request.transport is not None:
            request.transport.abort()


class Places:
    """Admits a number of streams or files at once; refuses more."""

    def __init__(self, count: int, what: str):
        self._count = count
        self._what = what
        self.taken = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        if self.taken >= self._count:
            raise RefusedError(
                f"The server takes at most {self._count} {self._what} at once (--max_streams), and "
                "has as many. Try again later.",
                code=1013,
                status=503,
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


Result = TypeVar("Result")


class Metrics:
    """The server's counts since it started, in Prometheus's text format 0.0.4."""

    def __init__(self):
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.audio_s = {"file": 0.0, "stream": 0.0}
        self._latencies_s: dict[str, list[int]] = {}
        self._sums_s: Counter[str] = Counter()

    def took(self, path: str, seconds: float) -> None:
        """Counts an answer by its latency."""
        counts = self._latencies_s.setdefault(path, [0] * len(_LATENCIES_S))
        counts[bisect.bisect_left(_LATENCIES_S, seconds)] += 1
        self._sums_s[path] += seconds

    def text(self, active: dict[str, int]) -> str:
        """All values; ``active`` are the streams and files of the moment."""
        lines: list[str] = []

        def add(name: str, kind: str, meaning: str, *values: tuple[str, float]) -> None:
            lines.extend([f"# HELP tfasr_{name} {meaning}", f"# TYPE tfasr_{name} {kind}"])
            lines.extend(f"tfasr_{name}{labels} {value:.15g}" for labels, value in values)

        by_path = [(f'{{path="{p}",status="{s}"}}', n) for (p, s), n in self.requests.items()]
        add("requests_total", "counter", "Requests answered, and streams that ended.", *by_path)
        audio = [(f'{{kind="{kind}"}}', seconds) for kind, seconds in self.audio_s.items()]
        add("audio_seconds_total", "counter", "Seconds of audio recognised.", *audio)
        now = [(f'{{kind="{kind}"}}', count) for kind, count in active.items()]
        add("active", "gauge", "Streams and files that are being recognised.", *now)
        latencies = []
        for path, counts in self._latencies_s.items():
            for bound, count in zip(_LATENCIES_S, itertools.accumulate(counts), strict=True):
                end = "+Inf" if math.isinf(bound) else f"{bound:g}"
                latencies.append((f'_bucket{{path="{path}",le="{end}"}}', count))
            latencies.append((f'_sum{{path="{path}"}}', self._sums_s[path]))
            latencies.append((f'_count{{path="{path}"}}', sum(counts)))
        meaning = "Seconds from a request, or a message of a stream, to the whole answer."
        add("latency_seconds", "histogram", meaning, *latencies)
        return "\n".join(lines) + "\n"


class Service:
    """A recogniser for many clients at once.

    Its work runs in threads so that the event loop goes on: what takes milliseconds in one pool,
    parts of files in another, where long recordings take turns and delay no speaker for longer than
    the processors are busy. Nothing is locked: ONNX Runtime, Keras's traced functions and the
    decoders may be called from several threads, and what changes belongs to one `Stream`, whose
    chunks follow each other.
    """

    def __init__(self, recogniser: Recogniser, limits: Limits):
        self.recogniser = recogniser
        self.limits = limits
        self.streams = Places(limits.max_streams, "streams")
        self.uploads = Places(limits.max_streams, "files")
        self.ending: asyncio.Event = asyncio.Event()
        self.metrics = Metrics()
        self.busy: set[Any] = set()  # transports of requests that are being answered
        threads = max(2, os.cpu_count() or 1)
        self._short = ThreadPoolExecutor(threads, thread_name_prefix="short")
        self._long = ThreadPoolExecutor(threads, thread_name_prefix="long")
        self.why_no_streams: str | None = None
        try:
            recogniser.spec.check_streams()
        except UsageError as error:
            self.why_no_streams = str(error)

    def warm_up(self) -> None:
        """Runs the model once, so that the first client doesn't wait for tracing."""
        second = np.zeros(self.recogniser.sample_rate_hz, np.float32)
        self.recogniser.transcribe(second)
        if self.why_no_streams is None:
            self.recogniser.open_stream(EndpointRules()).push(second)

    async def soon(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """The result of work that takes milliseconds, such as a chunk."""
        return await asyncio.get_running_loop().run_in_executor(self._short, work, *arguments)

    async def in_turn(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """The result of work that takes longer, such as minutes of audio."""
        return await asyncio.get_running_loop().run_in_executor(self._long, work, *arguments)

    def close(self) -> None:
        for pool in (self._short, self._long):
            pool.shutdown(cancel_futures=True)
