"""Speech from the espeak-ng library, which runs in a separate process.

The library keeps global state and is written in C: in a child process, a crash costs the speech
and not the caller.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.errors import RunError, optional_package
from tfasr.kit.process import start_module

SAMPLE_RATE_HZ = 22050
ANSWER = struct.Struct("<i")
# The library cuts the path of its data off at 160 bytes, with the names of its files appended.
_LONGEST_DATA_PATH_BYTES = 100
_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000
_RATE_PARAMETER, _PITCH_PARAMETER = 1, 3
_UTF8 = 1


class Library:
    """The parts of espeak-ng's C interface in use; OSError if it is too old or does not start."""

    def __init__(self, library: str, data: str):
        self._library = ctypes.CDLL(library)
        if not hasattr(self._library, "espeak_ng_SetRandSeed"):
            raise OSError("this espeak-ng is too old; install espeakng-loader 0.2.4 or newer")
        self._chunks: list[bytes] = []
        callback = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = callback(self._collect)  # held, or the library would call freed memory
        rate_hz = self._library.espeak_Initialize(
            _SYNCHRONOUS, 0, os.fsencode(data), ctypes.c_int(_DONT_EXIT)
        )
        if rate_hz != SAMPLE_RATE_HZ:
            raise OSError(f"espeak-ng must start at {SAMPLE_RATE_HZ} Hz. It answers: {rate_hz}")
        self._library.espeak_SetSynthCallback(self._callback)

    def _collect(self, samples: Any, count: int, events: Any) -> int:
        self._note(events)
        if samples and count > 0:
            self._chunks.append(ctypes.string_at(samples, 2 * count))
        return 0

    def _note(self, events: Any) -> None:
        """A hook for subclasses: ``events`` is the library's pointer to where words begin."""

    def speak(self, text: str, voice: str, rate_wpm: int, pitch: int) -> bytes:
        self._chunks.clear()
        # Breathy voices add noise, which the library would seed by the time of day.
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise OSError(f"espeak-ng has no voice {voice!r}")
        self._library.espeak_SetParameter(_RATE_PARAMETER, rate_wpm, 0)
        self._library.espeak_SetParameter(_PITCH_PARAMETER, pitch, 0)
        data = text.encode() + b"\0"
        status = self._library.espeak_Synth(
            data, ctypes.c_size_t(len(data)), 0, 0, 0, _UTF8, None, None
        )
        if status:
            raise OSError(f"espeak-ng answers with status {status}")
        return b"".join(self._chunks)


def _serve(library_path: str, data: str) -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library prints must not mix with the answers

    def answer(body: bytes, sign: int = 1) -> None:
        answers.write(ANSWER.pack(sign * len(body)) + body)
        answers.flush()

    try:
        library = Library(library_path, data)
    except OSError as error:
        answer(str(error).encode(), -1)
        return
    answer(b"")
    for line in sys.stdin.buffer:
        try:
            answer(library.speak(**json.loads(line)))
        except OSError as error:
            answer(str(error).encode(), -1)


class Espeak:
    """A child process that speaks; use it as a context manager.

    The same sequence of calls gives the same samples in every process, because the library's noise
    is seeded before each. The sequence matters: the library keeps state between utterances. A
    missing package espeakng-loader is a UsageError, a library that fails a RunError.
    """

    def __init__(self):
        library, data = _installed_library()
        self._resources = contextlib.ExitStack()
        with contextlib.ExitStack() as resources:
            data = resources.enter_context(_short_path(data))
            self._complaints = resources.enter_context(tempfile.TemporaryFile())
            self._child = start_module(
                *("tfasr.corpora.espeak", library, data),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
            )
            resources.callback(self._end_child)
            self._receive("while starting")
            self._resources = resources.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    def speak(self, text: str, voice: str, rate_wpm: int = 175, pitch: int = 50) -> np.ndarray:
        """Returns int16 ``(samples,)`` of a voice such as "en-us+f3"; the pitch is 0..100."""
        request = {"text": text, "voice": voice, "rate_wpm": rate_wpm, "pitch": pitch}
        line = json.dumps(request)
        with contextlib.suppress(BrokenPipeError):  # the missing answer shows it
            self._child.stdin.write(line.encode() + b"\n")
            self._child.stdin.flush()
        return np.frombuffer(self._receive(f"at {line}"), dtype="<i2")

    def close(self) -> None:
        self._resources.close()

    def _receive(self, occasion: str) -> bytes:
        head = self._child.stdout.read(ANSWER.size)
        count = ANSWER.unpack(head)[0] if len(head) == ANSWER.size else None
        body = self._child.stdout.read(abs(count)) if count is not None else b""
        if count is None or len(body) != abs(count):
            raise RunError(f"The speech synthesiser ended {occasion}: {self._last_words()}.")
        if count < 0:
            raise RunError(f"The speech synthesiser failed {occasion}: {body.decode()}.")
        return body

    def _last_words(self) -> str:
        code = self._child.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").split("\n")
        return " ".join([how, *lines[-5:]]).strip()

    def _end_child(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait()


def _installed_library() -> tuple[str, str]:
    with optional_package("espeak-ng", "The synthetic corpus", "'tfasr[demo]'"):
        loader = importlib.import_module("espeakng_loader")
    return loader.get_library_path(), loader.get_data_path()


@contextlib.contextmanager
def _short_path(data: str):
    if len(os.fsencode(data)) <= _LONGEST_DATA_PATH_BYTES:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="espeak-") as folder:
        link = Path(folder, "data")
        link.symlink_to(data, target_is_directory=True)
        yield str(link)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
