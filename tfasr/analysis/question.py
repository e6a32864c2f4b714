"""The question that a report answers about its runs, as one object."""

from collections.abc import Iterable
from dataclasses import dataclass

from tfasr.errors import UsageError
from tfasr.tta.policies import PAPER, Policy, policy_named
from tfasr.tta.targets import Target, written_target


@dataclass(frozen=True)
class Question:
    targets: tuple[Target, ...] = ()  # metrics and values; by default those that the runs set
    policy: Policy = PAPER  # whose clock and rule they are measured by
    window: int | None = None  # evaluations whose median must meet a target
    beside: tuple[Policy, ...] = ()  # further policies, each with its own window
    over_time: bool = False  # whether to keep what figures over time are made of
    force: bool = False  # whether runs are compared whose results are not comparable
    profile: bool = False  # whether groups are compared over all targets that they reached

    @property
    def own_window(self) -> int:
        """The evaluations whose median must meet a target."""
        return self.policy.window if self.window is None else self.window


def ask(
    targets: Iterable[str | Target] = (),
    policy: str | Policy = PAPER,
    window: int | None = None,
    *,
    beside: Iterable[Policy] = (),
    **options: bool,
) -> Question:
    """Returns a question whose parts may be written as a user writes them, such as "cer=0.10".

    Whether there are such metrics is known once the runs are, which may declare some.

    Raises:
        UsageError: if a target is written wrong, there is no such policy, or the window is less
            than 1.
    """
    if window is not None and window < 1:
        raise UsageError(f"The window must be at least 1 evaluation. Received: {window}.")
    written = tuple(written_target(t) if isinstance(t, str) else (t[0], t[1]) for t in targets)
    return Question(written, policy_named(policy), window, tuple(beside), **options)
