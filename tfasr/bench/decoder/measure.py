"""Measures one decoder in a process of its own, so that its peak memory is its own.

``python -m tfasr.bench.decoder.measure FILE SETTINGS`` reads log-probabilities and answers with one
line of JSON on its standard output.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tfasr.bench.decoder.log_probs import LogProbs
from tfasr.bench.decoder.workload import DecoderMeasurement, DecoderRow, decoder_label, measure
from tfasr.config import to_json
from tfasr.decoding.choice import DecoderConfig, make_decoder
from tfasr.errors import RunError, UsageError
from tfasr.telemetry.memory import peak_memory_mib


def measure_apart(path: Path, config: DecoderConfig, num_threads: int) -> DecoderRow:
    """Measures a decoder in a new process.

    Args:
        path: a file of `LogProbs`, its lexicon included where the decoder needs one.
        config: names the decoder.
        num_threads: threads of word beam search and of TensorFlow.

    Raises:
        UsageError: if the decoder cannot be made for this alphabet and lexicon.
        RunError: if it is not built, or the process died.
    """
    settings = json.dumps({"config": to_json(config), "num_threads": num_threads})
    command = [sys.executable, "-m", "tfasr.bench.decoder.measure", str(path), settings]
    # Decoders run on the processor: a process more must not ask for the accelerator's memory.
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **quiet}
    )
    if done.returncode:
        cause = f"signal {-done.returncode}" if done.returncode < 0 else f"{done.returncode}"
        raise RunError(
            f"Measuring {decoder_label(config)} at beam width {config.beam_width} must end with "
            f"exit code 0. Received: {cause} (signal 9 is what a full memory looks like). "
            f"{done.stderr.strip()[-1000:]}"
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    if "usage_error" in answer:
        raise UsageError(answer["usage_error"])
    if "run_error" in answer:
        raise RunError(answer["run_error"])
    return DecoderRow(config, DecoderMeasurement.from_json(answer))


def main(path: str, settings: str) -> dict[str, Any]:
    """Returns the answer of this process."""
    asked = json.loads(settings)
    config = DecoderConfig(**asked["config"])
    load = LogProbs.load(Path(path))
    if config.name == "beam":
        _limit_tensorflow(asked["num_threads"])
    before_mib = peak_memory_mib()
    try:
        measured = measure(
            load, lambda: make_decoder(config, load.alphabet, load.lexicon, asked["num_threads"])
        )
    except ValueError as error:
        return {"usage_error": str(error)}
    except RunError as error:
        return {"run_error": str(error)}
    found = dataclasses.replace(
        measured, peak_memory_mib=peak_memory_mib(), memory_before_mib=before_mib
    )
    return found.to_json()


def _limit_tensorflow(num_threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
