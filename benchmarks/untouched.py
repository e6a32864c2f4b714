"""Tabulates the AN4 presets' errors on dev and on speakers never used for a choice.

    python benchmarks/untouched.py --scores scores/accurate_greedy scores/accurate_word_beam \
        --dev_runs runs/fast_*_dev --untouched_runs runs/fast_*_untouched --out benchmarks/results

docs/recipes.md has the commands that train and score the runs.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

from scipy import stats
from twin import results

import tfasr

SPLITS = ("validation", "untouched")


def t_interval(values: list[float]) -> dict[str, float]:
    """Returns the mean and half the width of its 95 % t interval."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    half_width = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return {
        "mean": statistics.fmean(values),
        "half_width": half_width,
        "seeds": len(values),
    }


def seed_of(run_dir: Path) -> int:
    return json.loads((run_dir / "experiment.json").read_text())["training"]["seed"]


def error_rates(folders: list[Path]) -> tuple[list[dict], list[dict]]:
    """Returns every run's WER by split and decoder, and their means over the runs."""
    rows = []
    for folder in folders:
        rows += json.loads((folder / "scores.json").read_text())["rows"]

    by_run: dict[str, dict] = {}
    means = []

    for decoder in dict.fromkeys(row["decoder"] for row in rows):
        for split in SPLITS:
            chosen = [
                row
                for row in rows
                if (row["decoder"], row["split"]) == (decoder, split)
            ]
            percents = [100 * row["wer"] for row in chosen]
            means.append({"split": split, "decoder": decoder, **t_interval(percents)})

            for row, percent in zip(chosen, percents, strict=True):
                of_run = by_run.setdefault(row["run"], {"run": row["run"]})
                of_run[f"{split}_{decoder}"] = percent
                of_run |= {"checkpoint": row["checkpoint"]}
                of_run[f"{split}_{decoder}_counts"] = {
                    key: row[key]
                    for key in (
                        "substitutions",
                        "deletions",
                        "insertions",
                        "words",
                        "beam_width",
                    )
                }

    return list(by_run.values()), means


def epochs_to_target(
    dev_runs: list[Path], untouched_runs: list[Path], cer: float
) -> list[dict]:
    """Returns the epochs at which each seed meets the target on dev and on the
    untouched split.
    """
    rows: dict[int, dict] = {}
    for split, run_dirs in zip(SPLITS, (dev_runs, untouched_runs), strict=True):
        for run_dir in run_dirs:
            row = rows.setdefault(seed_of(run_dir), {"seed": seed_of(run_dir)})
            row[split] = tfasr.load_run(str(run_dir)).time_to_accuracy(cer=cer).epoch

    return [rows[seed] for seed in sorted(rows)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--scores",
        type=Path,
        nargs="+",
        required=True,
        help="folders of tfasr evaluate --out",
    )
    parser.add_argument("--dev_runs", type=Path, nargs="+", required=True)
    parser.add_argument("--untouched_runs", type=Path, nargs="+", required=True)
    parser.add_argument("--cer", type=float, default=0.15)
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args(arguments)

    by_run, means = error_rates(flags.scores)
    columns = [
        (f"{m['split']}_{m['decoder']}", f"{m['split']}, {m['decoder']}") for m in means
    ]
    of_means = [("split", "split"), ("decoder", "decoder"), ("mean", "mean WER %")]
    of_means += [("half_width", "+- (95 %, over seeds)"), ("seeds", "seeds")]
    epochs = epochs_to_target(flags.dev_runs, flags.untouched_runs, flags.cer)
    tables = [
        {"title": "fast/an4_accurate.gin: WER % by run", "rows": by_run}
        | {"columns": [("run", "run"), *columns]},
        {"title": "fast/an4_accurate.gin: means", "columns": of_means, "rows": means},
        {"title": f"fast/an4.gin: epochs to CER {100 * flags.cer:g} %", "rows": epochs}
        | {"columns": [("seed", "seed"), *((split, split) for split in SPLITS)]},
    ]
    notes = [
        "Trained on 746 utterances of 58 speakers (benchmarks/splits). Other work ran at the "
        "same time, which doesn't affect error rates or epochs.",
        "fast/an4_accurate.gin with CosineDecay.decay_steps = 1420, as there are fewer "
        "utterances.",
        "Recipes and targets were chosen on `validation` (dev), nothing on `untouched`.",
    ]
    outcome = results.result("an4_untouched", tables, notes, {})

    for path in results.write(outcome, flags.out):
        print(path)


if __name__ == "__main__":
    main()
