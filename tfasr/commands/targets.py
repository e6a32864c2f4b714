"""Flags that commands on runs share: targets, the machine, rules for texts.

They are in a file of their own, apart from `tfasr.commands.shared`, because
tfasr-measure contains the commands that need them, and no decoders.
"""

import argparse
from collections.abc import Callable
from typing import Any

from tfasr.normalisers import NORMALISERS
from tfasr.tta.policies import POLICIES, WINDOW


def add_target_arguments(
    add: Callable,
    policy: str | None,
    targets: str = "repeatable; default: the runs' targets",
) -> None:
    """Adds the flags that name targets and the policy by which they are met.

    Args:
        add: a parser's ``add_argument``.
        policy: the default; None shows all policies.
        targets: how targets may be given, and their default.
    """
    add(
        "--target",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help=f"such as cer=0.10, a fraction; {targets}",
    )

    rule = "how time is counted and when a target is met; default: paper"
    if policy is None:
        rule += "; if given, tables show all policies, and JSON has one object a group"

    add("--policy", choices=sorted(POLICIES), default=policy, help=rule)

    add(
        "--window",
        type=int,
        help="evaluations whose median must meet the target; default: the policy's, "
        f"{WINDOW} for paper",
    )


def add_hardware_arguments(add: Callable, machine: str, **options: Any) -> None:
    """Adds the flags of a machine's price.

    Args:
        add: a parser's ``add_argument``.
        machine: the help of ``--hardware``.
        options: further arguments of ``add`` for ``--hardware``.
    """
    options.setdefault("metavar", "FILE")
    add("--hardware", help=machine, **options)

    add(
        "--price_usd_per_hour",
        type=_usd,
        metavar="USD",
        help="rent, instead of the price in the file",
    )


def _usd(text: str) -> float:
    """Returns a flag's number of US dollars; it refuses "0.53 EUR" and the like."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "must be a number of US dollars; tfasr converts no currency. "
            f"Received: {text}"
        ) from None


def add_text_rule_arguments(add: Callable, when: str = "") -> None:
    """Adds the flags that normalise texts.

    Args:
        add: a parser's ``add_argument``.
        when: begins their help, such as "with --errors: ".
    """
    add(
        "--normalise",
        choices=tuple(NORMALISERS),
        help=(
            f"{when}normalise references and hypotheses before they are compared; "
            "docs/languages.md"
        ),
    )

    add(
        "--language",
        metavar="TAG",
        help=(
            f"{when}BCP 47 tag of the texts, such as tr, whose rules for upper and "
            "lower case hold"
        ),
    )
