"""Draws README's picture from the ledgers of the first record.

    python docs/site/first_picture.py

A thin line is a run, a thick one the median of a recipe's eight runs, and a ring the
median time at which the rule is met: the median of three evaluations is at most 10 %.
"""

import itertools
import statistics
import tarfile
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import tfasr

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "records" / "synthetic_cer_10" / "001-fast_demo" / "study.tar.xz"
TARGET = 0.10
WINDOW = 3
# Group of the record, its name in the picture, where the name stands, in seconds and %.
GROUPS = {
    "challenger": ("fast recipe", (10.9, 1.6)),
    "reigning": ("plain recipe", (13.6, 25.0)),
}
# Background, text, grid, and a colour for each group: as in the reports.
THEMES = {
    "light": ("#ffffff", "#1f2328", "#d1d9e0", ("#2a78d6", "#c2570c")),
    "dark": ("#0d1117", "#f0f6fc", "#3d444d", ("#6cb0ff", "#ff9e57")),
}


def smoothed(run: tfasr.Run) -> list[tuple[float, float]]:
    """Returns seconds and percent of a run's evaluations, each the median of three."""
    points = run.accuracy_curve("cer")
    values = [point.value for point in points]
    medians = [
        statistics.median(values[max(0, end - WINDOW) : end])
        for end in range(1, len(values) + 1)
    ]
    return [
        (point.elapsed_s, 100 * value)
        for point, value in zip(points, medians, strict=True)
    ]


def median_curve(curves: list[list[tuple[float, float]]]) -> np.ndarray:
    """Returns the medians over the runs that are left, until fewer than half are."""
    medians = []
    for points in itertools.zip_longest(*curves):
        left = [point for point in points if point]
        if 2 * len(left) < len(curves):
            break
        medians.append(np.median(left, axis=0))

    return np.array(medians)


def draw(groups: dict[str, list[tfasr.Run]], theme: str) -> None:
    """Writes docs/first_THEME.png."""
    background, ink, grid, colours = THEMES[theme]
    plt.rcParams.update({"font.size": 15, "text.color": ink, "axes.labelcolor": ink})
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    figure.set_facecolor(background)
    axes.set_facecolor(background)
    for (group, runs), colour in zip(groups.items(), colours, strict=True):
        name, place = GROUPS[group]
        curves = [smoothed(run) for run in runs]
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=colour, alpha=0.3, linewidth=1)

        middle = median_curve(curves)
        axes.plot(*middle.T, color=colour, linewidth=3)
        met_s = np.median([run.time_to_accuracy(cer=TARGET).seconds for run in runs])
        value = np.interp(met_s, *middle.T)
        axes.plot(
            met_s, value, "o", markersize=13, fillstyle="none",
            markeredgewidth=3, color=colour,
        )  # fmt: skip
        text = f"{name}: {met_s:.1f} s"
        axes.text(*place, text, color=colour, fontsize=17, fontweight="bold")

    axes.axhline(100 * TARGET, color=ink, linestyle="--", linewidth=1.5)
    axes.text(0.3, 100 * TARGET + 1, "target: 10 %")
    axes.set(
        xlabel="seconds since the model was created",
        ylabel="characters wrong, %",
        xlim=(0, 27),
        ylim=(0, 70),
    )
    axes.grid(color=grid, linewidth=0.7)
    axes.tick_params(colors=ink)
    axes.spines[:].set_color(grid)
    figure.savefig(ROOT / "docs" / f"first_{theme}.png", dpi=150)
    plt.close(figure)


def main() -> None:
    """Draws the picture in both themes."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(STUDY) as archive:
            archive.extractall(folder, filter="data")

        groups = {
            group: [
                tfasr.load_run(path)
                for path in sorted(Path(folder, "runs", group).iterdir())
            ]
            for group in GROUPS
        }
        for theme in THEMES:
            draw(groups, theme)


if __name__ == "__main__":
    main()
