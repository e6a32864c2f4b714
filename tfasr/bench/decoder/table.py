"""The comparison of decoders as a table and as JSON."""

from dataclasses import dataclass
from typing import Any

from tfasr.bench.decoder.log_probs import LogProbs
from tfasr.bench.decoder.rows import DecoderRow
from tfasr.decoding.choice import needs_lexicon
from tfasr.display.table import UNKNOWN, Table, records_of

_COLUMNS = [
    "decoder",
    "beam width",
    "CPU s per audio-hour",
    "wall s per audio-hour",
    "WER, %",
    "CER, %",
    "peak memory, MiB",
]
_WHOLE = "evaluation, s"


@dataclass(frozen=True)
class DecoderComparison:
    """What was measured, and on what.

    Attributes:
        rows: decoders and beam widths in the order of the table.
        load: the log-probabilities.
        source: names where they came from, as JSON values.
        num_threads: threads of the decoders.
    """

    rows: list[DecoderRow]
    load: LogProbs
    source: dict[str, Any]
    num_threads: int

    def table(self) -> Table:
        """Returns a row for each decoder and width.

        Source: the paper, Table 3, for the user's own model.
        """
        columns, cells = list(_COLUMNS), [_cells(row) for row in self.rows]
        if self.load.forward_s is not None:
            columns.insert(2, _WHOLE)
            for row, own in zip(self.rows, cells, strict=True):
                own.insert(2, _seconds(self._evaluation_s(row)))
        return Table(
            title="Decoders over beam widths",
            columns=columns,
            rows=cells,
            notes=self._notes(),
            name="beam_widths",
            records=records_of([self._values(row) for row in self.rows]),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values; rates are fractions, what could not be told is null."""
        return {
            "source": self.source,
            "utterances": len(self.load.references),
            "audio_s": float(self.load.audio_s.sum()),
            "lexicon_words": len(set(self.load.lexicon)),
            "num_threads": self.num_threads,
            "forward_s": self.load.forward_s,
            "rows": [self._values(row) for row in self.rows],
        }

    def _evaluation_s(self, row: DecoderRow) -> float | None:
        """Returns the seconds of a whole evaluation: forward passes, then decoding."""
        forward_s = self.load.forward_s
        return None if forward_s is None else forward_s + row.measured.wall_s

    def _values(self, row: DecoderRow) -> dict[str, Any]:
        return {**row.to_json(), "evaluation_s": self._evaluation_s(row)}

    def _notes(self) -> list[str]:
        load, threads = self.load, self.num_threads
        notes = [
            f"{len(load.references)} utterances, {load.audio_s.sum():.0f} s of audio, {threads} "
            f"{'thread' if threads == 1 else 'threads'}. CPU and wall seconds are those of "
            "decoding alone; CPU seconds are summed over threads.",
            "CER is over the longer of reference and hypothesis, as in the paper.",
        ]
        if load.forward_s is not None:
            notes.append(
                f"Evaluation: a whole one, {load.forward_s:.3g} s of forward passes and then the "
                "decoding, in wall-clock seconds. tfasr evaluate and training do the two at once."
            )
        if any(needs_lexicon(row.config) for row in self.rows):
            notes.append(_dictionary_note(load))
        before = [row.measured.memory_before_mib for row in self.rows]
        if None not in before:
            taken = dict.fromkeys(f"{mib:.0f}" for mib in (min(before), max(before)))
            notes.append(
                "Each row is measured in a process of its own, and its peak memory is that "
                f"process's, the making of the dictionary included. {' to '.join(taken)} MiB of it "
                "were taken before the decoder was made, by Python, the log-probabilities and, "
                "for prefix beam search, TensorFlow."
            )
        return notes


def _cells(row: DecoderRow) -> list[str]:
    measured = row.measured
    memory = measured.peak_memory_mib
    return [
        row.label,
        "none" if row.beam_width is None else str(row.beam_width),
        _seconds(measured.cpu_s_per_audio_hour),
        _seconds(measured.wall_s_per_audio_hour),
        f"{measured.counts.wer:.2%}".removesuffix("%"),
        f"{measured.counts.cer:.2%}".removesuffix("%"),
        UNKNOWN if memory is None else f"{memory:.0f}",
    ]


def _seconds(seconds: float) -> str:
    decimals = 3 if seconds < 1 else 2 if seconds < 100 else 0
    return f"{seconds:.{decimals}f}"


def _dictionary_note(load: LogProbs) -> str:
    known = set(load.lexicon)
    spoken = [word for reference in load.references for word in reference.split()]
    foreign = sum(word not in known for word in spoken) / max(len(spoken), 1)
    return (
        f"The dictionary holds {len(known)} words; {foreign:.2%} of the spoken words are not among "
        "them and cannot be heard by a decoder that keeps to it."
    )
