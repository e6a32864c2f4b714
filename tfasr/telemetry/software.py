"""Which software is there, and whether it works; what may crash is tried in a process apart."""

import json
import subprocess
import sys
from importlib import metadata
from typing import Any

from tfasr._version import __version__

OPTIONAL = {
    "nvidia-ml-py": "GPU utilisation and energy",
    "espeakng-loader": "the demo's synthetic speech",
    "kenlm": "word beam search with a KenLM model",
    "tensorflow-io": "--audio_reader tfio",
}
_PACKAGES = ("tensorflow", "keras", "numpy", "scipy", "soundfile", "soxr", "jiwer", "psutil")
_DECODER = "import tfasr.decoding._word_beam_core"
_TENSORFLOW = """
import json, tensorflow as tf
built = tf.sysconfig.get_build_info()
devices = [device.name for device in tf.config.list_physical_devices()]
print(json.dumps({"version": tf.__version__, "devices": devices,
                  "cuda": built.get("cuda_version"), "cudnn": built.get("cudnn_version")}))
"""
_PATIENCE_S = 180


def describe_software() -> dict[str, Any]:
    """Returns versions as JSON values; None is not installed."""
    return {
        "python": sys.version.split()[0],
        "packages": {"tfasr": __version__, **{name: version(name) for name in _PACKAGES}},
        "optional": {name: version(name) for name in OPTIONAL},
    }


def version(package: str) -> str | None:
    """Returns an installed package's version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def decoder_problem() -> str | None:
    """Returns why the compiled decoder does not load, or None where it does."""
    return _attempt(_DECODER)[1]


def probe_tensorflow() -> dict[str, Any]:
    """Imports TensorFlow in another process and returns what it says of itself.

    Returns:
        "version", "devices", "cuda" and "cudnn" it was built with, or "problem".
    """
    said, problem = _attempt(_TENSORFLOW)
    if problem is not None:
        return {"problem": problem}
    return json.loads(said.strip().splitlines()[-1])


def _attempt(code: str) -> tuple[str, str | None]:
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        return "", f"{lines[-1]} (exit status {done.returncode})"
    return done.stdout, None
