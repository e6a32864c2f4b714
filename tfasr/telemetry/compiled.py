"""Checks the compiled parts of tfasr; without them training takes about twice as long."""

import importlib
import logging
import os
import sys

from tfasr.errors import RunError

_PARTS = {
    "recurrent layers": "tfasr.layers._recurrent_core",
    "word beam search": "tfasr.decoding._word_beam_core",
}
_BUILD = "Build them in the source folder with a C++17 compiler: pip install --editable ."
# Sets the instruction set of the compiled layers; by default the processor's best.
INSTRUCTION_SET_VARIABLE = "TFASR_INSTRUCTION_SET"
log = logging.getLogger("tfasr")


def missing_extensions() -> dict[str, str]:
    """Returns the compiled parts that this platform should have and lacks, with the reasons."""
    missing = {}
    for name, module in _PARTS.items():
        # The layers use vector types of GCC and Clang, which Windows' compiler lacks, see setup.py.
        if sys.platform == "win32" and name == "recurrent layers":
            continue
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing[name] = str(error)
    return missing


def warn_of_missing_extensions() -> list[str]:
    """Logs which compiled parts are missing, and returns their names for the ledger."""
    missing = missing_extensions()
    if missing:
        log.warning(
            "Compiled parts of tfasr are missing: %s. Training falls back to loops in TensorFlow "
            "that take about twice the time. %s", _listed(missing), _BUILD,
        )  # fmt: skip
    return sorted(missing)


def layers_instruction_set() -> dict[str, str | bool] | None:
    """Returns the compiled layers' instruction set for the ledger, or None without these layers.

    ``name`` is, for example, "avx2"; ``forced`` means that TFASR_INSTRUCTION_SET set it. Raises
    RunError if this processor lacks the instruction set in that variable.
    """
    try:
        name = importlib.import_module(_PARTS["recurrent layers"]).chosen_instruction_set()
    except (ImportError, AttributeError):  # not built, or built from an older source
        return None
    except ValueError as error:
        raise RunError(str(error)) from error
    return {"name": name, "forced": bool(os.environ.get(INSTRUCTION_SET_VARIABLE))}


def require_extensions() -> None:
    """Raises RunError if a compiled part is missing, as its fallback must not be measured."""
    missing = missing_extensions()
    if missing:
        raise RunError(
            "A benchmark must measure tfasr with its compiled parts. Missing: "
            f"{_listed(missing)}. {_BUILD}"
        )


def _listed(missing: dict[str, str]) -> str:
    return "; ".join(f"{name} ({reason})" for name, reason in missing.items())
