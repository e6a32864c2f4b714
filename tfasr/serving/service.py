"""What all clients share: the recogniser, the threads that it runs in, and the limits."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from tfasr.errors import UsageError
from tfasr.recognising.endpoints import EndpointRules
from tfasr.recognising.recogniser import Recogniser
from tfasr.serving.limits import Limits, Places

Result = TypeVar("Result")


class Service:
    """A recogniser for many clients at once.

    Its work is done in threads, so that the event loop goes on: what takes milliseconds in one
    pool, parts of files in another, where long recordings take turns and delay no speaker for
    longer than the processors are busy. Nothing is locked: ONNX Runtime, Keras's traced functions
    and the decoders may be called from several threads, and what changes belongs to one `Stream`,
    whose chunks follow each other.
    """

    def __init__(self, recogniser: Recogniser, limits: Limits):
        self.recogniser = recogniser
        self.limits = limits
        self.streams = Places(limits.max_streams, "streams")
        self.uploads = Places(limits.max_streams, "files")
        self.ending: asyncio.Event = asyncio.Event()
        threads = max(2, os.cpu_count() or 1)
        self._short = ThreadPoolExecutor(threads, thread_name_prefix="short")
        self._long = ThreadPoolExecutor(threads, thread_name_prefix="long")
        try:
            recogniser.spec.check_streams()
        except UsageError as error:
            self.why_no_streams: str | None = str(error)
        else:
            self.why_no_streams = None

    def warm_up(self) -> None:
        """Runs the model once: the first chunk of the first client then waits for no tracing."""
        second = np.zeros(self.recogniser.sample_rate_hz, np.float32)
        self.recogniser.transcribe(second)
        if self.why_no_streams is None:
            self.recogniser.open_stream(EndpointRules()).push(second)

    async def soon(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Returns what a piece of work returns that takes milliseconds, such as a chunk."""
        return await asyncio.get_running_loop().run_in_executor(self._short, work, *arguments)

    async def in_turn(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Returns what a piece of work returns that takes longer, such as minutes of audio."""
        return await asyncio.get_running_loop().run_in_executor(self._long, work, *arguments)

    def close(self) -> None:
        """Waits until the threads have done what they do, and ends them."""
        for pool in (self._short, self._long):
            pool.shutdown(cancel_futures=True)
