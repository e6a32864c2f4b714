"""How well forecasts of times to accuracy hold: a backtest on logs of finished runs.

    python benchmarks/forecast.py --mlperf FOLDER --algoperf FOLDER [--tfasr FOLDER] [--seed 1]
        [--out FILE.json] [--coefficients FILE.py]

Each folder holds a folder for each group of runs (of one submission, system, workload).
Every run is cut after each evaluation, and what `tfasr.tta.forecast` says then is
compared with what came. Half of the systems of each source (drawn by the seed)
calibrate the quantile regressions, the other half test them; no run of a system is in
both. Simulated runs of known shapes are calibrated and tested likewise. tfasr's own
runs and the shapes with jumps and rises only test. Targets are the benchmark's own, and
1.25, 1.6 and 2.2 times that, so that a run has targets of early and of late. Each run
has one vote; standard errors are of a bootstrap over systems and runs.
"""

import argparse
import json
from pathlib import Path

from forecast_backtest.calibration import write_coefficients
from forecast_backtest.curves import SOURCES, read_curves, simulated_curves
from forecast_backtest.judgement import backtest
from forecast_backtest.tables import markdown


def main() -> None:
    """Runs the backtest and prints its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for source in SOURCES:
        parser.add_argument(f"--{source}", type=Path, metavar="FOLDER")

    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write FILE.json and FILE.md")
    parser.add_argument(
        "--coefficients",
        type=Path,
        help="also write the constant of tfasr.tta.forecast",
    )
    args = parser.parse_args()

    folders = {name: getattr(args, name) for name in SOURCES if getattr(args, name)}
    curves = read_curves(folders) + simulated_curves(args.seed)
    result = {
        "seed": args.seed,
        "runs": len({(curve.source, curve.group, curve.run) for curve in curves}),
        "groups": len({(curve.source, curve.group) for curve in curves}),
        **backtest(curves, args.seed),
    }
    text = markdown(result)
    print(text, end="")

    if args.out:
        rounded = json.loads(
            json.dumps(result), parse_float=lambda text: round(float(text), 4)
        )
        args.out.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")

    if args.coefficients:
        write_coefficients(args.coefficients, result["coefficients"])


if __name__ == "__main__":
    main()
