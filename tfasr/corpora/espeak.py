"""Speech from the espeak-ng library, which runs in a separate process.

`tfasr.corpora.synthetic` makes its corpora with it. The library is written in C and
keeps global state. In a child process, a crash loses the speech but doesn't end the
caller.
"""

import base64
import contextlib
import ctypes
import importlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.errors import RunError, optional_package
from tfasr.kit.process import ChildError, Correspondence, received

# The sample rate at which the library starts.
SAMPLE_RATE_HZ = 22050

# The library cuts the paths of its data files, which include the files' names, at 160
# bytes.
_LONGEST_DATA_PATH_BYTES = 100

# Numbers from espeak-ng's speak_lib.h.
_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000
_RATE_PARAMETER = 1
_PITCH_PARAMETER = 3
_UTF8 = 1


class Library:
    """The C functions of espeak-ng that tfasr uses.

    There can be only one in a process, as the library's state is global.

    Args:
        library: the path of the shared library.
        data: the folder with its voices and dictionaries.

    Raises:
        OSError: if the library is too old or doesn't start.
    """

    def __init__(self, library: str, data: str):
        self._library = ctypes.CDLL(library)
        # Without this function, breathy voices differ between runs.
        if not hasattr(self._library, "espeak_ng_SetRandSeed"):
            raise OSError(
                "this espeak-ng is too old; install espeakng-loader 0.2.4 or newer"
            )

        self._chunks: list[bytes] = []
        callback = ctypes.CFUNCTYPE(
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_short),
            ctypes.c_int,
            ctypes.c_void_p,
        )
        # Kept, or the library would call freed memory.
        self._callback = callback(self._collect)
        rate_hz = self._library.espeak_Initialize(
            _SYNCHRONOUS,
            0,
            os.fsencode(data),
            ctypes.c_int(_DONT_EXIT),
        )
        if rate_hz != SAMPLE_RATE_HZ:
            raise OSError(
                f"espeak-ng must start at {SAMPLE_RATE_HZ} Hz. Received: {rate_hz}."
            )

        self._library.espeak_SetSynthCallback(self._callback)

    def _collect(self, samples: Any, count: int, events: Any) -> int:
        """Called by the library with each block of samples; 0 means: go on."""
        self._note(events)
        if samples and count > 0:
            self._chunks.append(ctypes.string_at(samples, 2 * count))

        return 0

    def _note(self, events: Any) -> None:
        """A hook for subclasses: ``events`` is the library's pointer to where words begin."""

    def speak(self, text: str, voice: str, rate_wpm: int, pitch: int) -> bytes:
        """Returns little-endian 16-bit samples; OSError for an unknown voice.

        Rate and pitch are those of `Espeak.speak`.
        """
        self._chunks.clear()
        # Breathy voices add noise, which the library would otherwise seed with the time
        # of day.
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise OSError(f"espeak-ng has no voice {voice!r}")

        self._library.espeak_SetParameter(_RATE_PARAMETER, rate_wpm, 0)
        self._library.espeak_SetParameter(_PITCH_PARAMETER, pitch, 0)
        # The library counts the final zero as part of the text.
        data = text.encode() + b"\0"
        status = self._library.espeak_Synth(
            data,
            ctypes.c_size_t(len(data)),
            0,
            0,
            0,
            _UTF8,
            None,
            None,
        )
        if status:
            raise OSError(f"espeak-ng answers with status {status}")

        return b"".join(self._chunks)


def _answers(library_path: str, data: str) -> Iterator[list[str]]:
    """Runs in the child process: yields an answer for each request.

    An answer is the samples in base64 and an error message or "". The first one,
    without samples, is for starting the library.
    """
    try:
        library = Library(library_path, data)
    except OSError as error:
        yield ["", str(error)]
        return

    yield ["", ""]
    for request in received():
        try:
            yield [base64.b64encode(library.speak(**request)).decode(), ""]
        except OSError as error:
            yield ["", str(error)]


class Espeak:
    """A child process that speaks; use it as a context manager.

    The same sequence of calls gives the same samples in every process, because the
    library's noise is seeded before each call. Order matters: the library keeps state
    between utterances::

        with Espeak() as espeak:
            samples = espeak.speak("turn on the light", "en-us+f3")

    Raises:
        UsageError: if the package espeakng-loader is missing.
        RunError: if the library fails.
    """

    def __init__(self):
        with optional_package("espeak-ng", "The synthetic corpus", "'tfasr[demo]'"):
            loader = importlib.import_module("espeakng_loader")

        # Empty until everything has been opened, so that `close` can always be called.
        self._resources = contextlib.ExitStack()
        with contextlib.ExitStack() as resources:
            data = resources.enter_context(_short_path(loader.get_data_path()))
            paths = (loader.get_library_path(), data)
            self._child = Correspondence(
                _answers,
                *paths,
                task="The speech synthesiser",
            )
            resources.callback(self._child.close)
            self._receive("while starting")
            self._resources = resources.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def pid(self) -> int:
        """The child process, which tests kill."""
        return self._child.pid

    def speak(
        self,
        text: str,
        voice: str,
        rate_wpm: int = 175,
        pitch: int = 50,
    ) -> np.ndarray:
        """Returns int16 ``(samples,)`` at `SAMPLE_RATE_HZ`.

        Args:
            text: what to say.
            voice: such as "en-us+f3", an accent and a variant.
            rate_wpm: words per minute.
            pitch: 0..100.

        Raises:
            RunError: if the library fails or its process dies.
        """
        request = {"text": text, "voice": voice, "rate_wpm": rate_wpm, "pitch": pitch}
        self._child.send(request)

        return np.frombuffer(self._receive(f"at {json.dumps(request)}"), dtype="<i2")

    def close(self) -> None:
        """Ends the child process."""
        self._resources.close()

    def _receive(self, occasion: str) -> bytes:
        """Waits for an answer; RunError says what the child was doing if it fails."""
        try:
            samples, fault = self._child.next_answer()
        except ChildError as error:
            how = f"exit status {error.exit_code}"
            if error.exit_code < 0:
                how = signal.Signals(-error.exit_code).name

            raise RunError(
                f"The speech synthesiser ended {occasion}: {how} {error.messages}"
            ) from error

        if fault:
            raise RunError(f"The speech synthesiser failed {occasion}: {fault}.")

        return base64.b64decode(samples)


@contextlib.contextmanager
def _short_path(data: str):
    """Yields a path to the library's data that is short enough.

    If the data's own path is too long, it is a link in a temporary folder.
    """
    if len(os.fsencode(data)) <= _LONGEST_DATA_PATH_BYTES:
        yield data
        return

    with tempfile.TemporaryDirectory(prefix="espeak-") as folder:
        # The library finds its files through a link, too.
        link = Path(folder, "data")
        link.symlink_to(data, target_is_directory=True)
        yield str(link)
