"""All campaigns in twenty seconds of one core, for the tests: the same code on fewer cases.

``python -m campaigns.short --out FOLDER``
"""

import argparse
import sys
from pathlib import Path

from campaigns.children import load
from campaigns.faults import Faults
from campaigns.power_loss import PowerLoss
from campaigns.small_work import CONFIGURATIONS
from campaigns.torture import Plan, Torture

_STATES = 120
_PLAN = Plan(
    turns=("training", "preparing"),
    most_kills={"training": 1, "preparing": 2},
    configurations=CONFIGURATIONS[:1],
    processes=0.0,
    timers=0.0,
)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.short", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="gets the work")
    folder = parser.parse_args().out.resolve()
    load()
    torture = Torture(folder, seed=1, minutes=10, plan=_PLAN)
    torture.run(rounds=2)
    faults = list(torture.log.faults)
    kills = dict(torture.log.kills())

    power = PowerLoss(folder, seed=1)
    scenarios = [next(power.scenarios())]
    scenarios.append(power.training(folder / "fresh", CONFIGURATIONS[0], resumed=False))
    for scenario in scenarios:
        faults += power.examine(scenario, _STATES, samples=0)["faults"]

    broken = Faults(folder, seed=1, points=1)
    for name, number in (("ENOSPC", 6), ("EROFS", 9)):
        broken.errors_at("prepare", name, [number])
    faults += broken.faults
    print(
        f"{kills} kills, {_STATES * len(scenarios)} states, 2 errors: {len(faults)} violations"
    )
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
