"""Seconds, errors and memory of decoders at several beam widths.

A workload of ``tfasr bench``. A model's log-probabilities are computed once and saved;
each decoder then runs on them in a separate process, so that its memory can be measured
apart from the others'. `LogProbs` files can be passed on and measured elsewhere.

`run` yields a result after each decoder and width, so that hours of measurements aren't
lost if one fails: `measure_apart` starts the process, `measure` times the decoder in it.
"""

import dataclasses
import json
import logging
import math
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.bench.workload import Context, Result, Workload
from tfasr.decoding.choice import (
    DECODERS,
    DecoderConfig,
    load_lexicon,
    make_decoder,
    needs_lexicon,
)
from tfasr.decoding.decoder import Decoder, GreedyDecoder
from tfasr.display.chart import (
    Axis,
    Chart,
    Labels,
    Mark,
    Panel,
    Segments,
    curve,
    run_colour,
)
from tfasr.display.table import Column, Table, fixed, plural, records_of, table_of
from tfasr.errors import RunError, UsageError, wrong_values_are_wrong_use
from tfasr.kit.config import require
from tfasr.kit.files import LEXICON_FILE, read_text, whole_file
from tfasr.kit.process import call
from tfasr.scoring.errors import ErrorCounts, count_errors
from tfasr.telemetry.machine import peak_memory_mib

_HEIGHT_PX = 280.0
# Heights of a panel and of a line of text.
_LABEL_PX = 15.0
# Arrays in files of log-probabilities, and in files of logits.
_KEYS = ("log_probs", "offsets", "references", "audio_s", "alphabet")
_LOGIT_KEYS = ("logits", "offsets", "texts", "chars")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecoderBenchConfig:
    """Decoders and beam widths to measure, in all combinations.

    Attributes:
        decoders: to measure, in the table's order.
        beam_widths: hypotheses kept per frame
        recombine: also measures word beam search that merges equal beams.
        num_threads: threads of word beam search, and of TensorFlow.
    """

    decoders: tuple[str, ...] = ("word_beam", "greedy")
    beam_widths: tuple[int, ...] = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096)
    recombine: bool = False
    num_threads: int = 1

    def __post_init__(self):
        require(self.num_threads > 0, self, "num_threads", "at least 1 (--num_threads)")


@dataclass(frozen=True)
class LogProbs:
    """A model's outputs for a split, and what is needed to decode and score them.

    Attributes:
        log_probs: float32 ``(frames, classes)`` of all utterances, natural logarithms,
            blank last.
        offsets: integers ``(utterances + 1,)``; utterance n is frames
            ``offsets[n]:offsets[n + 1]``.
        references: the utterances' transcripts.
        audio_s: seconds, float64 ``(utterances,)``.
        alphabet: of the classes.
        lexicon: words for decoders with a dictionary.
        forward_s: wall-clock seconds of all forward passes, if known.

    Raises:
        ValueError: if the arrays don't match.
    """

    log_probs: np.ndarray
    offsets: np.ndarray
    references: list[str]
    audio_s: np.ndarray
    alphabet: Alphabet
    lexicon: tuple[str, ...] = ()
    forward_s: float | None = None

    def __post_init__(self):
        frames_and_classes = self.log_probs.shape
        if (
            len(frames_and_classes) != 2
            or frames_and_classes[1] != self.alphabet.num_classes
        ):
            raise ValueError(
                f"log_probs must have the shape (frames, {self.alphabet.num_classes}): the "
                f"alphabet's characters and the blank. Received: shape={frames_and_classes}."
            )

        utterances = len(self.references)
        if not utterances or self.offsets.shape != (utterances + 1,):
            raise ValueError(
                "offsets must have one more entry than references, at least two. Received: "
                f"{utterances} references, offsets of {self.offsets.shape}."
            )

        rising = self.offsets[0] == 0 and (np.diff(self.offsets) >= 0).all()
        if not rising or self.offsets[-1] != len(self.log_probs):
            raise ValueError(
                f"offsets must rise from 0 to {len(self.log_probs)}, the frames of log_probs. "
                f"Received: {self.offsets[0]}..{self.offsets[-1]}."
            )

        highest = self.log_probs.max(initial=-np.inf)
        if not highest <= 1e-4:  # also rejects NaN
            message = "log_probs must be natural logarithms of probabilities."
            raise ValueError(f"{message} Received: {highest}.")

        if self.audio_s.shape != (utterances,) or not (self.audio_s > 0).all():
            raise ValueError(
                f"audio_s must hold {utterances} durations above 0, one for each reference. "
                f"Received: shape={self.audio_s.shape}, smallest={self.audio_s.min(initial=0)}."
            )

    @property
    def audio_hours(self) -> float:
        """Hours of audio of all utterances."""
        return float(self.audio_s.sum()) / 3600

    def batches(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields padded log-probabilities and their lengths, for `Decoder.decode`."""
        lengths = np.diff(self.offsets)
        for first in range(0, len(lengths), size):
            batch_lengths = lengths[first : first + size]
            shape = (len(batch_lengths), batch_lengths.max(), self.log_probs.shape[1])
            batch = np.zeros(shape, np.float32)

            for row, begin, length in zip(
                batch,
                self.offsets[first:],
                batch_lengths,
                strict=False,
            ):
                row[:length] = self.log_probs[begin : begin + length]

            yield batch, batch_lengths

    def save(self, path: Path) -> None:
        """Writes a file in NumPy's format, which needs no tfasr to be read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            np.savez(
                file,
                log_probs=self.log_probs,
                offsets=self.offsets,
                references=np.array(self.references, dtype=str),
                audio_s=self.audio_s,
                alphabet=np.array(json.dumps(self.alphabet.to_json())),
                lexicon=np.array(self.lexicon, dtype=str),
                # NumPy makes NaN of None.
                forward_s=np.array(self.forward_s, np.float64),
            )

    @classmethod
    def load(cls, path: Path) -> "LogProbs":
        """Reads a file written by `save`, or a file of logits.

        A file of logits has ``logits`` float ``(frames, classes)`` in frames of 20 ms,
        ``offsets``, ``texts``, ``chars`` (one string of characters in class order, with
        "_" as separator) and optionally ``lexicon``.

        Raises:
            UsageError: if the file is missing or invalid.
        """
        try:
            with path.open("rb") as file:  # NumPy leaves a broken archive open
                return _read(np.load(file, allow_pickle=False))
        except FileNotFoundError as error:
            message = (
                f"{path} must be a file of log-probabilities, but it doesn't exist."
            )
            raise UsageError(message) from error
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(
                f"{path} must be a file of log-probabilities from --save_log_probs. "
                f"Received: {error}"
            ) from error


def _read(stored: np.lib.npyio.NpzFile | np.ndarray) -> LogProbs:
    """Returns the file's log-probabilities; ValueError names missing parts."""
    if isinstance(stored, np.ndarray):
        raise ValueError("a single array.")

    words = ()
    if "lexicon" in stored:
        words = tuple(stored["lexicon"].tolist())

    if all(key in stored for key in _LOGIT_KEYS):
        # Imported late: the command line must start quickly.
        from scipy.special import log_softmax

        offsets = stored["offsets"].astype(np.int64)
        characters = str(stored["chars"])
        separator = "_" if "_" in characters else None

        return LogProbs(
            log_probs=log_softmax(stored["logits"], axis=1).astype(
                np.float32, copy=False
            ),
            offsets=offsets,
            references=stored["texts"].tolist(),
            audio_s=np.diff(offsets) * 0.02,
            alphabet=Alphabet(characters, separator),
            lexicon=words,
        )

    # All of them, so that one message is enough.
    if missing := [key for key in _KEYS if key not in stored]:
        raise ValueError(f"arrays {sorted(stored.files)}, without {missing}.")

    # A file of somebody else may lack them; NaN is unknown too.
    forward_s = None
    if "forward_s" in stored and np.isfinite(stored["forward_s"]):
        forward_s = float(stored["forward_s"])

    return LogProbs(
        log_probs=stored["log_probs"].astype(np.float32, copy=False),
        offsets=stored["offsets"].astype(np.int64),
        references=stored["references"].tolist(),
        audio_s=stored["audio_s"].astype(np.float64),
        alphabet=Alphabet.from_json(json.loads(str(stored["alphabet"]))),
        lexicon=words,
        forward_s=forward_s,
    )


@dataclass(frozen=True)
class DecoderRow:
    """One decoder at one beam width.

    It has many fields because each is a value of the result.

    Attributes:
        config: of the decoder.
        build_s: wall-clock seconds to create the decoder and its dictionary.
        cpu_s: CPU seconds to decode all utterances, summed over threads.
        wall_s: wall-clock seconds of the same work.
        passes: how often all utterances were decoded; seconds are medians.
        audio_hours: duration of all utterances together.
        counts: of errors.
        forward_s: `LogProbs.forward_s`.
        peak_memory_mib: of the process that measured this row, if known.
        memory_before_mib: peak memory before the decoder was created.
    """

    config: DecoderConfig
    build_s: float
    cpu_s: float
    wall_s: float
    passes: int
    audio_hours: float
    counts: ErrorCounts
    forward_s: float | None = None
    peak_memory_mib: float | None = None
    memory_before_mib: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns seconds per hour of audio, errors and memory as JSON."""
        beam_width = None
        if DECODERS[self.config.name].has_beam:
            beam_width = self.config.beam_width

        evaluation_s = None
        if self.forward_s is not None:
            evaluation_s = self.forward_s + self.wall_s

        return {
            "decoder": self.config.name,
            "beam_width": beam_width,
            "recombine": self.config.recombine,
            "cpu_s_per_audio_hour": self.cpu_s / self.audio_hours,
            "wall_s_per_audio_hour": self.wall_s / self.audio_hours,
            **self.counts.to_json(),
            "peak_memory_mib": self.peak_memory_mib,
            "memory_before_mib": self.memory_before_mib,
            "build_s": self.build_s,
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
            "passes": self.passes,
            "evaluation_s": evaluation_s,
        }


def decoder_label(decoder: str, recombine: bool) -> str:
    """Returns a decoder's name for tables and figures, without its beam width."""
    kind = DECODERS[decoder]
    label = kind.label or decoder
    if kind.recombines and recombine:
        label += ", recombined"

    return label


def _label(row: dict[str, Any]) -> str:
    """Returns the name of a row's decoder."""
    return decoder_label(row["decoder"], row["recombine"])


def decoder_configs(
    decoders: Sequence[str],
    beam_widths: Sequence[int],
    *,
    recombine: bool = False,
) -> list[DecoderConfig]:
    """Returns the decoders to measure, in all combinations.

    Decoders without a beam are measured once. ``recombine`` also measures those that can
    merge equal hypotheses.

    Raises:
        ValueError: for an unknown name or invalid width.
    """
    unknown = [name for name in decoders if name not in DECODERS]
    if unknown:
        raise ValueError(
            f"Decoders must be some of {DECODERS.listed()}. Received: {unknown}."
        )

    configs = []
    for name in dict.fromkeys(decoders):
        kind = DECODERS[name]
        widths = [1]
        if kind.has_beam:
            widths = sorted(set(beam_widths))

        ways = [False]
        if kind.recombines and recombine:
            ways.append(True)

        for way in ways:
            configs += [
                DecoderConfig(name=name, beam_width=width, recombine=way)
                for width in widths
            ]

    return configs


def measure_file(path: Path, config: DecoderConfig, num_threads: int) -> DecoderRow:
    """Measures one decoder in this process, whose peak memory is the decoder's.

    The peak before it was created is in the result, too.
    """
    load = LogProbs.load(path)
    if DECODERS[config.name].on_tensorflow:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)

    # With the log-probabilities, which every decoder needs.
    before_mib = peak_memory_mib()
    make = partial(make_decoder, config, load.alphabet, load.lexicon, num_threads)

    with wrong_values_are_wrong_use():
        row = measure(load, config, make)

    return dataclasses.replace(
        row,
        peak_memory_mib=peak_memory_mib(),
        memory_before_mib=before_mib,
    )


def measure(
    load: LogProbs,
    config: DecoderConfig,
    make: Callable[[], Decoder],
    *,
    batch_size: int = 64,
) -> DecoderRow:
    """Measures errors and seconds of decoding.

    All utterances are decoded again for half a second, at most ten times; seconds are
    medians.

    Args:
        load: what to decode.
        config: of the decoder, for the result.
        make: creates the decoder.
        batch_size: utterances that it gets together.
    """
    began = time.perf_counter()
    decoder = make()
    build_s = time.perf_counter() - began
    # One frame of one utterance.
    first, lengths = next(load.batches(1))
    # Libraries load in the first call.
    decoder.decode(first[:, :1], lengths.clip(max=1))
    texts = []
    cpu_s = []
    wall_s = []

    while not wall_s or (sum(wall_s) < 0.5 and len(wall_s) < 10):
        texts = []
        cpu_s.append(0.0)
        wall_s.append(0.0)

        for log_probs, lengths in load.batches(batch_size):
            cpu_began = time.process_time()
            wall_began = time.perf_counter()
            hypotheses = decoder.decode(log_probs, lengths)
            cpu_s[-1] += time.process_time() - cpu_began
            wall_s[-1] += time.perf_counter() - wall_began
            texts += [hypothesis.text for hypothesis in hypotheses]

    return DecoderRow(
        config,
        build_s,
        statistics.median(cpu_s),
        statistics.median(wall_s),
        passes=len(wall_s),
        audio_hours=load.audio_hours,
        counts=count_errors(load.references, texts),
        forward_s=load.forward_s,
    )


def run_log_probs(context: Context) -> LogProbs:
    """Runs a run's model on a split as `tfasr evaluate` does.

    The result has no lexicon.

    Raises:
        RunError: if shards lack utterances.
    """
    # Imported late: a file of log-probabilities is measured without TensorFlow.
    from tfasr.training.evaluation import Evaluator
    from tfasr.training.trained import open_trained

    trained = open_trained(context.run_dir)
    source = trained.source(context.split, context.shard_dir)
    model = trained.model(context.checkpoint)
    evaluator = Evaluator(model, source, GreedyDecoder(trained.alphabet))
    # Traces the forward pass outside the measured time.
    next(evaluator.forward_passes())
    answered: dict[int, np.ndarray] = {}
    began = time.perf_counter()

    for positions, log_probs, lengths, _ in evaluator.forward_passes():
        for position, rows, length in zip(
            positions.tolist(),
            log_probs,
            lengths,
            strict=True,
        ):
            # A view would keep the whole batch.
            answered[position] = rows[:length].copy()

    forward_s = time.perf_counter() - began
    utterances = source.split.utterances
    if missing := [
        spoken.id for spoken in utterances if spoken.position not in answered
    ]:
        raise RunError(
            f"Every utterance of the split must be in its shards. {source.split.folder} "
            f"lacks {len(missing)}: {missing[:5]}. Run tfasr prepare into an empty --shard_dir."
        )

    ordered = [answered[utterance.position] for utterance in utterances]

    return LogProbs(
        log_probs=np.concatenate(ordered),
        offsets=np.cumsum([0, *map(len, ordered)]),
        references=[utterance.text for utterance in utterances],
        audio_s=np.array([utterance.duration_s for utterance in utterances]),
        alphabet=trained.alphabet,
        forward_s=forward_s,
    )


def decoder_table(
    rows: Sequence[dict[str, Any]],
    load: LogProbs,
    num_threads: int,
) -> Table:
    """Returns a line for each row of `DecoderRow.to_json`.

    Source: the paper, Table 3, for the user's own model.

    Args:
        rows: measured so far.
        load: what was decoded, for the notes.
        num_threads: of each decoder.
    """
    columns = [
        Column("decoder", "", _label),
        Column("beam width", "", "beam_width", missing="none"),
        Column("CPU s per audio-hour", "", "cpu_s_per_audio_hour", _seconds),
        Column("wall s per audio-hour", "", "wall_s_per_audio_hour", _seconds),
        Column("WER, %", "", "wer", fixed(2, 100)),
        Column("CER, %", "", "cer", fixed(2, 100)),
        Column("peak memory, MiB", "", "peak_memory_mib", fixed(0)),
    ]
    if load.forward_s is not None:
        columns.insert(2, Column("evaluation, s", "", "evaluation_s", _seconds))

    return table_of(
        "Decoders over beam widths",
        columns,
        rows,
        _notes(rows, load, num_threads),
        name="beam_widths",
        records=records_of(rows),
    )


def _notes(rows: Sequence[dict[str, Any]], load: LogProbs, threads: int) -> list[str]:
    """Returns what was decoded, and what the columns mean."""
    notes = [
        f"{len(load.references)} utterances, {load.audio_s.sum():.0f} s of audio, "
        f"{plural(threads, 'thread')}. CPU and wall seconds are for decoding alone; CPU "
        "seconds are summed over threads.",
        "CER divides by the longer of reference and hypothesis, as in the paper.",
    ]
    if load.forward_s is not None:
        notes.append(
            f"Evaluation: {load.forward_s:.3g} s of forward passes followed by decoding, in "
            "wall-clock seconds. tfasr evaluate and training overlap the two."
        )

    if any(DECODERS[row["decoder"]].needs_lexicon for row in rows):
        lexicon = set(load.lexicon)
        spoken = [word for reference in load.references for word in reference.split()]
        unknown = sum(word not in lexicon for word in spoken) / max(len(spoken), 1)
        notes.append(
            f"The dictionary has {len(lexicon)} words. {unknown:.2%} of the spoken words "
            "are missing, so a decoder limited to the dictionary can't recognise them."
        )

    before = [row["memory_before_mib"] for row in rows]
    if None not in before:
        taken = dict.fromkeys(f"{mib:.0f}" for mib in (min(before), max(before)))
        notes.append(
            "Each row is measured in a separate process; peak memory is that process's, "
            f"including creation of the dictionary. {' to '.join(taken)} MiB of it are "
            "Python, the log-probabilities and, for prefix beam search, TensorFlow."
        )

    return notes


def _seconds(seconds: float) -> str:
    """Formats seconds with three decimals below 1, two below 100, otherwise none."""
    if seconds < 1:
        return f"{seconds:.3f}"
    if seconds < 100:
        return f"{seconds:.2f}"

    return f"{seconds:.0f}"


def decoder_chart(rows: Sequence[dict[str, Any]]) -> Chart:
    """Draws the cost of a wider beam, and its gain, with a curve per decoder."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        curves.setdefault(_label(row), []).append(row)

    seconds = {
        name: [row["cpu_s_per_audio_hour"] for row in of_decoder]
        for name, of_decoder in curves.items()
    }
    wer = {
        name: [100 * row["wer"] for row in of_decoder]
        for name, of_decoder in curves.items()
    }
    most = max(map(max, wer.values())) or 1.0
    low = min(map(min, seconds.values()))
    high = max(map(max, seconds.values()))
    # Whole decades, so that ticks are powers of ten.
    bottom = math.floor(math.log10(low))
    decades = (10.0**bottom, 10.0 ** max(math.ceil(math.log10(high)), bottom + 1))
    cost = Axis("CPU seconds per hour of audio", log=True, limits=decades)
    errors = Axis("word error rate, %", limits=(0.0, 1.1 * most))
    panels = [
        _panel(curves, seconds, cost, "{:.2g}"),
        _panel(curves, wer, errors, "{:.1f}"),
    ]
    caption = "The cost of a wider beam, and its gain"

    return Chart("decoder", caption, panels, columns=2, width=420)


def _panel(
    curves: dict[str, list[dict[str, Any]]],
    values: dict[str, list[float]],
    y: Axis,
    form: str,
) -> Panel:
    """Draws one value of all decoders over the beam width.

    A decoder without a beam is a horizontal line.

    Args:
        curves: the rows of each decoder.
        values: by decoder, one for each of its rows.
        y: the axis of the values.
        form: how the last value of a curve is written next to it.
    """
    widths = {row["beam_width"] for rows in curves.values() for row in rows}
    widths = sorted(widths - {None}) or [1]
    x = (widths[0] / 1.6, widths[-1] * 1.6**2)
    marks: list[Mark] = []

    for index, (name, rows) in enumerate(curves.items()):
        colour = run_colour(index)
        ys = values[name]
        if rows[0]["beam_width"] is None:
            marks.append(
                Segments(
                    x0=[x[0]],
                    x1=[x[1]],
                    y0=ys,
                    y1=ys,
                    colour=colour,
                    dash="dashed",
                    series=name,
                )
            )
        else:
            marks += curve([row["beam_width"] for row in rows], ys, colour, name)

    marks += _ends(values, x[1], y, form)
    # At most 8 ticks, among them the widest beam.
    step = math.ceil(len(widths) / 8)
    beam = Axis("beam width", log=True, limits=x, ticks=sorted(widths[::-1][::step]))

    return Panel(marks, beam, y, height=_HEIGHT_PX)


def _ends(values: dict[str, list[float]], x: float, y: Axis, form: str) -> list[Labels]:
    """Returns the values at the curves' right ends as labels that don't overlap."""

    def height(value: float) -> float:
        low, high = y.limits
        if y.log:
            low, high, value = map(math.log, (low, high, value))

        return _HEIGHT_PX * (value - low) / (high - low)

    ends = sorted(
        (height(ys[-1]), ys[-1], index) for index, ys in enumerate(values.values())
    )
    labels = []
    lowest_free = -math.inf

    for at, value, index in ends:
        place = max(at, lowest_free)
        lowest_free = place + _LABEL_PX
        labels.append(
            Labels(
                x=[x],
                y=[value],
                words=[form.format(value)],
                colour=run_colour(index),
                dy=at - place - _LABEL_PX / 2,
                align="right",
            )
        )

    return labels


def run(config: DecoderBenchConfig, context: Context) -> Iterator[Result]:
    """Measures decoders at every beam width, one after another, in separate processes."""
    if (context.run_dir is None) == (context.log_probs is None):
        raise UsageError(
            "Log-probabilities must come from --run_dir or from --log_probs. "
            f"Received: --run_dir {context.run_dir}, --log_probs {context.log_probs}."
        )

    with wrong_values_are_wrong_use():
        decoders = decoder_configs(
            config.decoders,
            config.beam_widths,
            recombine=config.recombine,
        )

    if not decoders:
        raise UsageError(
            "Measuring needs a decoder and a beam width. Received: nothing."
        )

    load = _load(context, decoders)
    needing = [decoder.name for decoder in decoders if needs_lexicon(decoder)]
    if needing and not load.lexicon:
        raise UsageError(
            f"The decoder {needing[0]!r} needs a dictionary with at least one word. Received: no "
            "words; pass a file of words with --lexicon, or leave this decoder out of --decoders."
        )

    source = {"log_probs": str(context.log_probs)}
    if context.log_probs is None:
        source = {
            "run_dir": str(context.run_dir),
            "split": context.split,
            "checkpoint": context.checkpoint,
        }

    rows: list[dict[str, Any]] = []
    values = {
        "source": source,
        "utterances": len(load.references),
        "audio_s": float(load.audio_s.sum()),
        "lexicon_words": len(set(load.lexicon)),
        "num_threads": config.num_threads,
        "forward_s": load.forward_s,
    }

    with tempfile.TemporaryDirectory() as scratch:
        path = context.save_log_probs or Path(scratch) / "log_probs.npz"
        load.save(path)

        for decoder in decoders:
            row = measure_apart(path, decoder, config.num_threads).to_json()
            rows.append(row)
            label = _label(row)
            if row["beam_width"] is not None:
                label += f", beam width {row['beam_width']}"
            cost = row["cpu_s_per_audio_hour"]
            wer = 100 * row["wer"]
            _log.info("%s: %.3g CPU s per audio-hour, WER %.2f %%", label, cost, wer)
            table = decoder_table(rows, load, config.num_threads)
            figures = {"decoder": lambda: decoder_chart(rows)}
            yield Result([table], {**values, "rows": list(rows)}, 0, figures)


def measure_apart(path: Path, config: DecoderConfig, num_threads: int) -> DecoderRow:
    """Measures one decoder in a separate process."""
    label = decoder_label(config.name, config.recombine)

    return call(
        measure_file,
        path,
        config,
        num_threads,
        # Decoders run on the processor, so that process must not take the accelerator's
        # memory.
        environment={"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        task=f"Measuring {label} at beam width {config.beam_width}",
        show_messages=False,
    )


def _load(context: Context, decoders: Sequence[DecoderConfig]) -> LogProbs:
    """Returns the log-probabilities to decode, from a file or by running a model."""
    words = None
    if context.lexicon is not None:
        remedy = "--lexicon must be a text file of words."
        lines = read_text(context.lexicon, remedy).splitlines()
        words = tuple(word for word in map(str.strip, lines) if word)

    if context.log_probs is not None:
        load = LogProbs.load(context.log_probs)
        if words is None:
            return load

        return dataclasses.replace(load, lexicon=words)

    # A run with another decoder may have none.
    has_lexicon = (context.run_dir / LEXICON_FILE).is_file()
    if words is None and (has_lexicon or any(map(needs_lexicon, decoders))):
        # Before the slow forward passes, so that a missing file is reported at once.
        words = tuple(load_lexicon(context.run_dir))

    return dataclasses.replace(run_log_probs(context), lexicon=words or ())


DECODER = Workload(run, (DecoderBenchConfig,), backends=(), by_flags=True)
