"""``tfasr bench decoder``: seconds, errors and memory of decoders over beam widths.

The log-probabilities are those of a run's model on a split, or stand in a file.
"""

import argparse
import dataclasses
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.errors import UsageError

if TYPE_CHECKING:
    from tfasr.bench.decoder.log_probs import LogProbs
    from tfasr.bench.decoder.rows import DecoderRow
    from tfasr.decoding.choice import DecoderConfig

BEAM_WIDTHS = (1, 4, 16, 64, 256, 1024, 4096)
DEFAULT_DECODERS = ("word_beam", "greedy")
FORMATS = ("table", "markdown", "json")

_log = logging.getLogger(__name__)


def bench_decoder(
    *,
    run_dir: str | Path | None = None,
    split: str | None = None,
    shard_dir: str | Path | None = None,
    checkpoint: str = "best",
    log_probs: str | Path | None = None,
    save_log_probs: str | Path | None = None,
    lexicon: str | Path | None = None,
    decoders: Sequence[str] = DEFAULT_DECODERS,
    beam_widths: Sequence[int] = BEAM_WIDTHS,
    recombine: bool = False,
    num_threads: int = 1,
    out: str | Path | None = None,
    output_format: str = "table",
) -> str:
    """Measures decoders and returns the table as text.

    Args:
        run_dir: a folder that `tfasr train` wrote; or else ``log_probs``.
        split: a prepared split, with ``run_dir``.
        shard_dir: where it is; the run's own by default.
        checkpoint: "best" (by validation CER), "last", or a file.
        log_probs: a file that ``save_log_probs`` wrote, or one of logits, see `LogProbs.load`.
        save_log_probs: a file that gets them, the lexicon included.
        lexicon: a file with a word a line; by default the run's or the file's own.
        decoders: "word_beam", "greedy" and "beam".
        beam_widths: each at least 1; greedy decoding has none.
        recombine: also measure word beam search with recombination.
        num_threads: threads of word beam search.
        out: a folder for ``decoder.png``, ``results.json`` and ``table.md``, written anew after
            each measurement; it is made where missing.
        output_format: "table", "markdown" or "json".

    Raises:
        UsageError: if an argument is wrong, or a decoder cannot be made for the alphabet.
        RunError: if a measurement fails; those before it are in ``out``.
        OSError: if a file cannot be written.
    """
    from tfasr.bench.decoder.measure import measure_apart
    from tfasr.bench.decoder.table import DecoderComparison, to_format, write_comparison

    _check(run_dir, split, shard_dir, log_probs, num_threads, output_format)
    configs = _configs(decoders, beam_widths, recombine)
    if log_probs is not None:
        load = _from_file(Path(log_probs), lexicon)
        source = {"log_probs": str(log_probs)}
    else:
        load = _from_run(Path(run_dir), split, shard_dir, checkpoint, lexicon, configs)
        source = {"run_dir": str(run_dir), "split": split, "checkpoint": checkpoint}
    _check_lexicon(load, configs)
    comparison = DecoderComparison([], load, source, num_threads)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(save_log_probs or Path(scratch) / "log_probs.npz")
        load.save(path)
        for config in configs:
            comparison.rows.append(measure_apart(path, config, num_threads))
            _log_row(comparison.rows[-1])
            if out is not None:
                write_comparison(comparison, Path(out))
    return to_format(comparison, output_format)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the workload's flags."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run_dir", help="a folder that tfasr train wrote")
    source.add_argument("--log_probs", metavar="FILE", help="an .npz of --save_log_probs")
    parser.add_argument("--split", help="a prepared split, with --run_dir")
    parser.add_argument("--shard_dir", help="default: the run's own")
    parser.add_argument("--checkpoint", default="best", help="best, last or a file")
    parser.add_argument(
        "--save_log_probs", metavar="FILE", help="an .npz that gets the log-probabilities"
    )
    parser.add_argument(
        "--lexicon", metavar="FILE", help="a word a line; default: the run's, or the file's own"
    )
    parser.add_argument(
        "--decoders",
        default=",".join(DEFAULT_DECODERS),
        help="of word_beam, greedy and beam (TensorFlow's); default: %(default)s",
    )
    parser.add_argument(
        "--beam_widths", default=",".join(map(str, BEAM_WIDTHS)), help="default: %(default)s"
    )
    parser.add_argument(
        "--recombine",
        action="store_true",
        help="also word beam search with recombination, see WordBeamSearch",
    )
    parser.add_argument("--num_threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--out", metavar="DIR", help="gets decoder.png, results.json, table.md")
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: %(default)s")


def run(arguments: argparse.Namespace) -> None:
    """Runs the workload."""
    text = bench_decoder(
        run_dir=arguments.run_dir,
        split=arguments.split,
        shard_dir=arguments.shard_dir,
        checkpoint=arguments.checkpoint,
        log_probs=arguments.log_probs,
        save_log_probs=arguments.save_log_probs,
        lexicon=arguments.lexicon,
        decoders=arguments.decoders.split(","),
        beam_widths=_numbers(arguments.beam_widths),
        recombine=arguments.recombine,
        num_threads=arguments.num_threads,
        out=arguments.out,
        output_format=arguments.format,
    )
    sys.stdout.write(text)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"--beam_widths must be integers with commas, such as 1,16,256. Received: {text!r}."
        ) from error


def _check(
    run_dir: str | Path | None,
    split: str | None,
    shard_dir: str | Path | None,
    log_probs: str | Path | None,
    num_threads: int,
    output_format: str,
) -> None:
    if (run_dir is None) == (log_probs is None):
        raise UsageError(
            "Log-probabilities must come from --run_dir or from --log_probs. "
            f"Received: --run_dir {run_dir}, --log_probs {log_probs}."
        )
    if run_dir is not None and split is None:
        raise UsageError("--run_dir must come with --split, as in --split validation.")
    if log_probs is not None and (split is not None or shard_dir is not None):
        raise UsageError("--split and --shard_dir belong to --run_dir. Received: --log_probs too.")
    if num_threads < 1:
        raise UsageError(f"--num_threads must be at least 1. Received: {num_threads}.")
    if output_format not in FORMATS:
        raise UsageError(f"The format must be one of {FORMATS}. Received: {output_format!r}.")


def _configs(
    decoders: Sequence[str], beam_widths: Sequence[int], recombine: bool
) -> "list[DecoderConfig]":
    from tfasr.bench.decoder.rows import decoder_configs

    try:
        configs = decoder_configs(decoders, beam_widths, recombine=recombine)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not configs:
        raise UsageError("There must be a decoder and a beam width to measure. Received: none.")
    return configs


def _from_file(path: Path, lexicon: str | Path | None) -> "LogProbs":
    from tfasr.bench.decoder.log_probs import LogProbs

    load = LogProbs.load(path)
    return load if lexicon is None else dataclasses.replace(load, lexicon=_read_words(lexicon))


def _from_run(
    run_dir: Path,
    split: str,
    shard_dir: str | Path | None,
    checkpoint: str,
    lexicon: str | Path | None,
    configs: "Sequence[DecoderConfig]",
) -> "LogProbs":
    from tfasr.bench.decoder.run_log_probs import run_log_probs
    from tfasr.decoding.choice import load_lexicon
    from tfasr.run_files import LEXICON_FILE

    words: tuple[str, ...] = ()
    if lexicon is not None:
        words = _read_words(lexicon)
    elif (run_dir / LEXICON_FILE).is_file() or _needs_words(configs):
        # In vain forward passes take long: whatever is missing is said before.
        words = tuple(load_lexicon(run_dir))
    load = run_log_probs(run_dir, split, shard_dir=shard_dir, checkpoint=checkpoint)
    return dataclasses.replace(load, lexicon=words)


def _read_words(path: str | Path) -> tuple[str, ...]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--lexicon must be a text file of words. Received: {error}.") from error
    return tuple(word for word in map(str.strip, lines) if word)


def _needs_words(configs: "Sequence[DecoderConfig]") -> bool:
    return any(config.name == "word_beam" for config in configs)


def _check_lexicon(load: "LogProbs", configs: "Sequence[DecoderConfig]") -> None:
    if _needs_words(configs) and not load.lexicon:
        raise UsageError(
            "Word beam search must be given a dictionary with at least one word. Received: none; "
            "name a file of words with --lexicon, or leave word_beam out of --decoders."
        )


def _log_row(row: "DecoderRow") -> None:
    width = "" if row.beam_width is None else f", beam width {row.beam_width}"
    seconds, counts = row.measured.cpu_s_per_audio_hour, row.measured.counts
    _log.info(
        "%s%s: %.3g CPU s per audio-hour, WER %.2f %%", row.label, width, seconds, 100 * counts.wer
    )
