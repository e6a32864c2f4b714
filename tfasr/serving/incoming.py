"""Bytes from a client to samples at the model's rate."""

import numpy as np
import soxr

from tfasr.recognising.samples import as_samples
from tfasr.serving.limits import RefusedError

LOWEST_HZ, HIGHEST_HZ = 8000, 192000


class IncomingSpeech:
    """Signed 16-bit samples, little endian, one channel, in pieces of any number of bytes.

    Raises RefusedError for a rate that no microphone has.
    """

    def __init__(self, rate_hz: object, model_rate_hz: int):
        if type(rate_hz) is float and rate_hz.is_integer():  # as some write 16000.0
            rate_hz = int(rate_hz)
        if type(rate_hz) is not int or not LOWEST_HZ <= rate_hz <= HIGHEST_HZ:
            received = rate_hz if isinstance(rate_hz, int | float) else type(rate_hz).__name__
            raise RefusedError(
                f"sample_rate must be a whole number of Hz, {LOWEST_HZ} to {HIGHEST_HZ}. Received: "
                f"{received}.",
                code=1007,
            )
        self._rate_hz = rate_hz
        self._half = b""
        self._count = 0
        self._resampler = None
        if rate_hz != model_rate_hz:
            self._resampler = soxr.ResampleStream(
                rate_hz, model_rate_hz, 1, dtype="float32", quality="HQ"
            )

    @property
    def seconds(self) -> float:
        """Of audio that came."""
        return self._count / self._rate_hz

    def samples(self, data: bytes) -> np.ndarray:
        """Returns the samples of the next bytes, float32 ``(samples,)``; half a one waits."""
        data = self._half + data
        whole = len(data) // 2 * 2
        self._half = data[whole:]
        self._count += whole // 2
        samples = as_samples(np.frombuffer(data[:whole], "<i2").astype(np.int16, copy=False))
        if self._resampler is None or not len(samples):
            return samples
        return self._resampler.resample_chunk(samples)

    def rest(self) -> np.ndarray:
        """Returns what the filter still holds when all has come, float32 ``(samples,)``."""
        nothing = np.zeros(0, np.float32)
        if self._resampler is None or not self._count:
            return nothing
        return self._resampler.resample_chunk(nothing, last=True)
