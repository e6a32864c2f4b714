"""Which of a report's figures a study shows of a part, and what the paper calls them."""

import dataclasses
from collections.abc import Mapping, Sequence

from tfasr.display.chart import Chart
from tfasr.display.files import file_names

_SHOWN = ("train_loss", "cer", "wer", "utilisation", "throughput_wall", "brackets", "why")
_PAPER = {
    "Table 4": {
        "train_loss": "Figure 7a",
        "cer": "Figure 7b",
        "wer": "Figure 7c",
        "utilisation": "Figure 8",
        "throughput_wall": "Figure 9",
    },
    "Table 6": {"throughput_wall": "Figure 10"},
}


def first_figures(published_table: str) -> Mapping[str, str]:
    """Returns what the paper calls the figures of the runs of one of its tables, by our name."""
    return _PAPER.get(published_table, {})


def figures_of_part(charts: Sequence[Chart], part: str, paper: Mapping[str, str]) -> list[Chart]:
    """Returns a part's figures, named after it and with the paper's names in their captions."""
    (prefix,) = file_names([part])
    order = {name: number for number, name in enumerate(_SHOWN)}
    shown = [chart for chart in charts if chart.name in order or chart.name.startswith("why")]
    shown.sort(key=lambda chart: order.get(chart.name, len(order)))
    return [
        dataclasses.replace(
            chart,
            name=f"{prefix}_{chart.name}",
            caption=f"As {paper[chart.name]} of the paper: {chart.caption}"
            if chart.name in paper
            else chart.caption,
        )
        for chart in shown
    ]
