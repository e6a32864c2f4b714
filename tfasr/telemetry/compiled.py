"""Checks the compiled parts of tfasr; without them training takes about twice as long.

Training warns of missing parts and states them in the ledger; a benchmark refuses to
measure their fallbacks. ``tfasr doctor`` shows both. TensorFlow is not imported here.
"""

import functools
import importlib
import logging
import os
import sys
import time

from tfasr.errors import RunError

# The module of each part, which can be imported if the part was built.
_PARTS = {
    "recurrent layers": "tfasr.layers._recurrent_core",
    "word beam search": "tfasr.decoding._word_beam_core",
}

# What to do about a missing part.
_BUILD = (
    "Build them in the source folder with a C++17 compiler: pip install --editable ."
)

# The variable that sets the instruction set of the compiled layers; by default it is
# the processor's best.
INSTRUCTION_SET_VARIABLE = "TFASR_INSTRUCTION_SET"

# The instruction sets with products of bfloat16; the others emulate them.
_MULTIPLY_BFLOAT16 = ("amx", "avx512bf16")

# How often `bfloat16_speedup` runs each precision.
_TURNS = 20

log = logging.getLogger("tfasr")


def missing_extensions() -> dict[str, str]:
    """Returns the compiled parts that this platform should have and lacks.

    The values are the reasons, as Python's import gives them.
    """
    missing = {}
    for name, module in _PARTS.items():
        # The layers use vector types of GCC and Clang, which Windows' compiler lacks,
        # see setup.py.
        if sys.platform == "win32" and name == "recurrent layers":
            continue

        try:
            importlib.import_module(module)
        except ImportError as error:
            missing[name] = str(error)

    return missing


def warn_of_missing_extensions() -> list[str]:
    """Logs which compiled parts are missing.

    Returns:
        Their names for the ledger, sorted; [] if all are there.
    """
    missing = missing_extensions()
    if missing:
        log.warning(
            "Compiled parts of tfasr are missing: %s. Training falls back to loops in "
            "TensorFlow that take about twice the time. %s",
            _listed(missing),
            _BUILD,
        )

    return sorted(missing)


def layers_instruction_set() -> dict[str, str | bool] | None:
    """Returns the compiled layers' instruction set for the ledger, None without them.

    Returns:
        ``name`` is, for example, "avx2"; ``forced`` means that TFASR_INSTRUCTION_SET
        set it; ``bfloat16_speedup`` is there if this process has measured it.

    Raises:
        RunError: if this processor lacks the instruction set in that variable.
    """
    try:
        layers = importlib.import_module(_PARTS["recurrent layers"])
        name = layers.chosen_instruction_set()
    # The part was not built, or built from an older source.
    except (ImportError, AttributeError):
        return None
    except ValueError as error:
        raise RunError(str(error)) from error

    forced = bool(os.environ.get(INSTRUCTION_SET_VARIABLE))

    return {"name": name, "forced": forced} | _measured


# What this process has measured of itself, for the ledger.
_measured: dict[str, float] = {}


@functools.cache
def bfloat16_speedup() -> float | None:
    """Measures how many times as fast a recurrence is in bfloat16 as in float32.

    The recurrence is that of 160 LSTM units, 16 utterances and 25 frames, forwards, in
    one thread. The two precisions take turns, and each one's fastest turn of 20 counts,
    so that other work on the machine affects both alike. It is measured once per
    process.

    Returns:
        The ratio; None if the compiled layers are missing or their instruction set has
        no products of bfloat16.
    """
    instructions = layers_instruction_set()
    if instructions is None or instructions["name"] not in _MULTIPLY_BFLOAT16:
        return None

    # Here alone, since commands that only ask for what is missing start sooner.
    import numpy as np

    core = importlib.import_module(_PARTS["recurrent layers"])
    random = np.random.default_rng(0)
    # Inputs (the four gates of 160 units), bias, kernel, and the two initial states.
    sizes = ((16, 25, 640), (640,), (160, 640), (16, 160), (16, 160))
    x, bias, kernel, h, c = (random.normal(0, 0.1, s).astype(np.float32) for s in sizes)

    # The upper half of a float32 is a bfloat16.
    halves = [(array.view(np.uint32) >> 16).astype(np.uint16) for array in (x, kernel)]
    inputs = {"float32": (x, kernel), "bfloat16": halves}

    fastest = dict.fromkeys(inputs, np.inf)

    for _ in range(_TURNS):
        for precision, (x, kernel) in inputs.items():
            forward = getattr(core, f"forward_{precision}")
            began = time.perf_counter()
            forward(x, bias, kernel, h, c, None, threads=1)
            fastest[precision] = min(fastest[precision], time.perf_counter() - began)

    _measured["bfloat16_speedup"] = round(fastest["float32"] / fastest["bfloat16"], 2)

    return _measured["bfloat16_speedup"]


def require_extensions() -> None:
    """Raises RunError if a compiled part is missing.

    A benchmark calls it: a measured fallback would pass for tfasr's speed.
    """
    missing = missing_extensions()
    if missing:
        raise RunError(
            "A benchmark must measure tfasr with its compiled parts. Missing: "
            f"{_listed(missing)}. {_BUILD}"
        )


def _listed(missing: dict[str, str]) -> str:
    """Returns missing parts in one line, each with its reason."""
    return "; ".join(f"{name} ({reason})" for name, reason in missing.items())
