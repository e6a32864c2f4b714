"""Seconds, errors and memory of decoders over beam widths.

The log-probabilities are those of a run's model on a split, or stand in a file.
"""

import dataclasses
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfasr.bench.decoder.config import DecoderBenchConfig
from tfasr.bench.decoder.figure import decoder_chart
from tfasr.bench.decoder.log_probs import LogProbs
from tfasr.bench.decoder.measure import measure_file
from tfasr.bench.decoder.rows import DecoderRow, decoder_configs, decoder_label
from tfasr.bench.decoder.table import DecoderComparison
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.decoding.choice import DecoderConfig, load_lexicon, needs_lexicon
from tfasr.errors import UsageError, wrong_values_are_wrong_use
from tfasr.run_files import LEXICON_FILE

_log = logging.getLogger(__name__)


def run(config: DecoderBenchConfig, context: Context) -> Iterator[Result]:
    """Measures one decoder at one beam width after the other, each in a process of its own.

    Raises:
        UsageError: if there is nothing to decode, or a decoder cannot be made for the alphabet.
        RunError: if a measurement fails.
    """
    if (context.run_dir is None) == (context.log_probs is None):
        raise UsageError(
            "Log-probabilities must come from --run_dir or from --log_probs. "
            f"Received: --run_dir {context.run_dir}, --log_probs {context.log_probs}."
        )
    with wrong_values_are_wrong_use():
        decoders = decoder_configs(config.decoders, config.beam_widths, recombine=config.recombine)
    if not decoders:
        raise UsageError("There must be a decoder and a beam width to measure. Received: none.")
    load = _load(context, decoders)
    _check_lexicon(load, decoders)
    comparison = DecoderComparison([], load, _source(context), config.num_threads)
    with tempfile.TemporaryDirectory() as scratch:
        path = context.save_log_probs or Path(scratch) / "log_probs.npz"
        load.save(path)
        for decoder in decoders:
            comparison.rows.append(measure_apart(path, decoder, config.num_threads))
            _log_row(comparison.rows[-1])
            yield Result(
                tables=[comparison.table()],
                values=comparison.to_json(),
                warmup_steps=0,
                figures={"decoder": lambda: decoder_chart(comparison.rows)},
            )


def measure_apart(path: Path, config: DecoderConfig, num_threads: int) -> DecoderRow:
    """Measures a decoder in a process of its own, so that its peak memory is its own.

    Args:
        path: a file of `LogProbs`, its lexicon included where the decoder needs one.
        config: names the decoder.
        num_threads: threads of word beam search and of TensorFlow.

    Raises:
        UsageError: if the decoder cannot be made for this alphabet and lexicon.
        RunError: if it is not built, or the process died.
    """
    measured = call(
        measure_file,
        path,
        config,
        num_threads,
        # Decoders run on the processor: a process more must not ask for the accelerator's memory.
        environment={"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        task=f"Measuring {decoder_label(config)} at beam width {config.beam_width}",
        show_messages=False,
    )
    return DecoderRow(config, measured)


def _source(context: Context) -> dict[str, Any]:
    if context.log_probs is not None:
        return {"log_probs": str(context.log_probs)}
    run_dir, split = str(context.run_dir), context.split
    return {"run_dir": run_dir, "split": split, "checkpoint": context.checkpoint}


def _load(context: Context, decoders: Sequence[DecoderConfig]) -> LogProbs:
    words = None if context.lexicon is None else _read_words(context.lexicon)
    if context.log_probs is not None:
        load = LogProbs.load(context.log_probs)
        return load if words is None else dataclasses.replace(load, lexicon=words)
    if words is None and ((context.run_dir / LEXICON_FILE).is_file() or _needs_words(decoders)):
        # Before the forward passes, which take long: a missing file is reported at once.
        words = tuple(load_lexicon(context.run_dir))
    # Imported here: a file of log-probabilities is measured without TensorFlow.
    from tfasr.bench.decoder.run_log_probs import run_log_probs

    load = run_log_probs(
        context.run_dir,
        context.split,
        shard_dir=context.shard_dir,
        checkpoint=context.checkpoint,
    )
    return dataclasses.replace(load, lexicon=words or ())


def _read_words(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--lexicon must be a text file of words. Received: {error}.") from error
    return tuple(word for word in map(str.strip, lines) if word)


def _needs_words(decoders: Sequence[DecoderConfig]) -> bool:
    return any(map(needs_lexicon, decoders))


def _check_lexicon(load: LogProbs, decoders: Sequence[DecoderConfig]) -> None:
    needing = [decoder.name for decoder in decoders if needs_lexicon(decoder)]
    if needing and not load.lexicon:
        raise UsageError(
            f"The decoder {needing[0]!r} must be given a dictionary with at least one word. "
            "Received: none; name a file of words with --lexicon, or leave it out of --decoders."
        )


def _log_row(row: DecoderRow) -> None:
    width = "" if row.beam_width is None else f", beam width {row.beam_width}"
    seconds, counts = row.measured.cpu_s_per_audio_hour, row.measured.counts
    _log.info(
        "%s%s: %.3g CPU s per audio-hour, WER %.2f %%", row.label, width, seconds, 100 * counts.wer
    )


DECODER = Workload(run, (DecoderBenchConfig,), backends=(), flat=True)
