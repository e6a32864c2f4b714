"""A clock policy of your own: only the seconds of training steps count, no waiting for input.

tfasr report RUN --import examples/own_policy.py --policy pure_training
"""

from tfasr.ledger.intervals import INTERVALS
from tfasr.tta.policies import POLICIES, Policy

POLICIES.register(
    "pure_training",
    Policy(
        "pure_training",
        start="run_start",
        # The clock stands still during all others.
        excluded=frozenset(INTERVALS) - {"train"},
        counts_evaluation=False,
        window=1,
        at_epoch_end=True,
        rule=(
            "training steps alone, from run_start to the end of the first epoch whose evaluation "
            "meets the target"
        ),
        source="examples/own_policy.py",
    ),
)
