"""Measures one decoder: its seconds, its errors, and what its process holds."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from tfasr.bench.decoder.log_probs import LogProbs
from tfasr.bench.decoder.rows import DecoderMeasurement
from tfasr.decoding.choice import DECODERS, DecoderConfig, make_decoder
from tfasr.decoding.decoder import Decoder
from tfasr.errors import wrong_values_are_wrong_use
from tfasr.metrics import count_errors
from tfasr.telemetry.memory import peak_memory_mib

BATCH_SIZE = 64
_ENOUGH_S = 0.5
_MOST_PASSES = 10


def measure_file(path: Path, config: DecoderConfig, num_threads: int) -> DecoderMeasurement:
    """Measures a decoder on a file of log-probabilities, the memory of this process included.

    Args:
        path: a file of `LogProbs`, its lexicon included where the decoder needs one.
        config: names the decoder.
        num_threads: threads of word beam search and of TensorFlow.

    Raises:
        UsageError: if the decoder cannot be made for this alphabet and lexicon.
        RunError: if it is not built.
    """
    load = LogProbs.load(path)
    if DECODERS[config.name].on_tensorflow:
        _limit_tensorflow(num_threads)
    before_mib = peak_memory_mib()
    with wrong_values_are_wrong_use():
        measured = measure(
            load, lambda: make_decoder(config, load.alphabet, load.lexicon, num_threads)
        )
    return dataclasses.replace(
        measured, peak_memory_mib=peak_memory_mib(), memory_before_mib=before_mib
    )


def _limit_tensorflow(num_threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)


def measure(
    load: LogProbs, make: Callable[[], Decoder], *, batch_size: int = BATCH_SIZE
) -> DecoderMeasurement:
    """Decodes all utterances and counts seconds and errors; does not look at memory.

    Only the calls of `decode` are timed. A pass is repeated until half a second was measured, at
    most ten times, so that a few milliseconds do not stand alone.

    Args:
        load: what is decoded.
        make: makes the decoder.
        batch_size: utterances that `decode` is given at a time.
    """
    began = time.perf_counter()
    decoder = make()
    build_s = time.perf_counter() - began
    first, lengths = next(load.batches(1))
    decoder.decode(first[:, :1], lengths.clip(max=1))  # what is loaded at the first call, is now
    cpu_s: list[float] = []
    wall_s: list[float] = []
    texts: list[str] = []
    while not wall_s or (sum(wall_s) < _ENOUGH_S and len(wall_s) < _MOST_PASSES):
        texts, pass_cpu_s, pass_wall_s = _decode_all(decoder, load, batch_size)
        cpu_s.append(pass_cpu_s)
        wall_s.append(pass_wall_s)
    return DecoderMeasurement(
        build_s=build_s,
        cpu_s=statistics.median(cpu_s),
        wall_s=statistics.median(wall_s),
        passes=len(wall_s),
        audio_hours=load.audio_hours,
        counts=count_errors(load.references, texts),
    )


def _decode_all(
    decoder: Decoder, load: LogProbs, batch_size: int
) -> tuple[list[str], float, float]:
    """Returns the texts, processor seconds and wall-clock seconds of one pass."""
    texts: list[str] = []
    cpu_s = wall_s = 0.0
    for log_probs, lengths in load.batches(batch_size):
        cpu_began, wall_began = time.process_time(), time.perf_counter()
        hypotheses = decoder.decode(log_probs, lengths)
        cpu_s += time.process_time() - cpu_began
        wall_s += time.perf_counter() - wall_began
        texts += [hypothesis.text for hypothesis in hypotheses]
    return texts, cpu_s, wall_s
