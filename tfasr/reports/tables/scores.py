"""Error rates of best checkpoints on several splits, a row for each run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfasr.display.table import UNKNOWN, Cell, Column, Table, fixed, records_of, table_of

_RATES = {"wer": "WER %", "cer": "CER %"}


def scores_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a row for each run and two columns for each split.

    ``rows`` has one for each run and split: ``run``, ``split``, ``decoder``, ``beam_width``,
    ``wer`` and ``cer`` as fractions, and whatever else the records are to hold.

    Source: the paper, Table 5 (validation and test sets at one beam width).
    """
    splits = list(dict.fromkeys(str(row["split"]) for row in rows))
    runs = list(dict.fromkeys(row["run"] for row in rows))
    scores = {(row["run"], row["split"]): row for row in rows}

    def rate_of(split: str, rate: str) -> Callable[[Any], float | None]:
        return lambda run: (row := scores.get((run, split))) and row[rate]

    return table_of(
        "Error rates",
        [
            Column("Run", "", lambda run: run),
            *(
                Column(f"{split}\n{heading}", "", rate_of(split, rate), fixed(2, 100))
                for split in splits
                for rate, heading in _RATES.items()
            ),
        ],
        runs,
        [f"{_decoders(rows)}. CER is over the longer of reference and hypothesis, as in the "
         "paper."],
        colours=[None] * len(runs),
        name="scores",
        records=records_of([_flat(row) for row in rows]),
    )  # fmt: skip


def _decoders(rows: Sequence[Mapping[str, Any]]) -> str:
    decoders = dict.fromkeys(_decoder(row) for row in rows)
    if len(decoders) == 1:
        return f"Decoder: {next(iter(decoders))}"
    runs = dict.fromkeys((row["run"], _decoder(row)) for row in rows)
    return "Decoders: " + "; ".join(f"{run}: {decoder}" for run, decoder in runs)


def _decoder(row: Mapping[str, Any]) -> str:
    name, width = row.get("decoder", UNKNOWN), row.get("beam_width")
    text = str(name) if width is None else f"{name}, beam width {width}"
    model = row.get("language_model")
    return text if model is None else f"{text}, language model {Path(model).name}"


def _flat(row: Mapping[str, Any]) -> dict[str, Cell]:
    flat: dict[str, Cell] = {}
    for key, value in row.items():
        if isinstance(value, list | tuple):
            flat |= {f"{key}_low": value[0], f"{key}_high": value[1]}
        else:
            flat[key] = value
    return flat
