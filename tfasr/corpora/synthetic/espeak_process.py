"""The child process in which espeak-ng's library runs, see `tfasr.corpora.synthetic.espeak`.

With the arguments LIBRARY and DATA it answers once when the library has
started, and then once for each JSON line on its standard input: a signed 32-bit count of bytes and
that many bytes, which are 16-bit samples, or a message where the count is negative.

Source: espeak-ng's speak_lib.h and espeak_ng.h, version 1.52.
"""

import ctypes
import json
import os
import struct
import sys
from typing import Any

SAMPLE_RATE_HZ = 22050
ANSWER = struct.Struct("<i")

_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000
_RATE_PARAMETER, _PITCH_PARAMETER = 1, 3
_UTF8 = 1


class Library:
    """The few calls that are needed of espeak-ng's C interface.

    Raises:
        OSError: if it is too old or does not start.
    """

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
        """Is told where in the samples words begin; ``events`` is the library's pointer."""

    def speak(self, text: str, voice: str, rate_wpm: int, pitch: int) -> bytes:
        """Returns 16-bit samples, see `tfasr.corpora.synthetic.espeak.Espeak.speak`."""
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

    def answer(count: int, body: bytes) -> None:
        answers.write(ANSWER.pack(count) + body)
        answers.flush()

    try:
        library = Library(library_path, data)
    except OSError as error:
        answer(-len(str(error).encode()), str(error).encode())
        return
    answer(0, b"")
    for line in sys.stdin.buffer:
        try:
            samples = library.speak(**json.loads(line))
            answer(len(samples), samples)
        except OSError as error:
            answer(-len(str(error).encode()), str(error).encode())


if __name__ == "__main__":
    _serve(*sys.argv[1:])
