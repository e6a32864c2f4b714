"""What one client, and all of them together, may ask of the server."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from tfasr.errors import UsageError


@dataclass(frozen=True)
class Limits:
    """Bounds that keep memory, disk and time finite whatever clients do; all must be positive."""

    max_streams: int = 16  # at once; as many files besides
    max_stream_s: float = 3600.0  # of a stream, and of the time in which a file must have come
    max_upload_mb: float = 500.0  # of a file, millions of bytes
    max_upload_s: float = 4 * 3600.0  # of the audio in a file
    max_message_bytes: int = 1 << 18  # in a stream; 262144 are 8 s at 16 kHz
    idle_s: float = 30.0  # a client that sends or reads nothing for so long is let go

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise UsageError(
                    f"--{field.name} must be more than 0, and finite. Received: {value}."
                )

    @property
    def max_upload_bytes(self) -> int:
        """The most bytes of a file."""
        return int(self.max_upload_mb * 1e6)


class RefusedError(Exception):
    """What a client is told whose request or stream ends here; nobody else notices.

    A WebSocket is closed with the code (RFC 6455, section 7.4.1), another request gets the status.
    """

    def __init__(self, message: str, *, code: int = 1008, status: int = 400):
        super().__init__(message)
        self.code = code
        self.status = status


class Places:
    """So many streams or files may come in at once; the next are refused until one has gone."""

    def __init__(self, count: int, what: str):
        self._count = count
        self._what = what
        self.taken = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Keeps a place while the block runs; raises RefusedError if all are taken."""
        if self.taken >= self._count:
            raise RefusedError(
                f"The server takes at most {self._count} {self._what} at once (--max_streams), and "
                "has so many. Try again later.",
                code=1013,
                status=503,
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
