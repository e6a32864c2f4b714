"""``tfasr study``: trains experiments, each with several seeds, and reports on them."""

import argparse
import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tfasr.commands.shared import add_scheduler_arguments, path_of, tls_of
from tfasr.kit.files import read_text
from tfasr.kit.scheduler import scheduler_client

EXAMPLE = "study --gin_file study/demo.gin"
log = logging.getLogger("tfasr")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the study's file, its folders, when to stop, and the hosts that train."""
    add = parser.add_argument
    add(
        "--gin_file",
        required=True,
        help="the experiments, such as study/paper_small.gin",
    )
    add("--gin_binding", action="append", default=[], help="repeatable")
    add(
        "--run_dir",
        help="folder for runs, logs and report; default: studies/ + the file's name",
    )
    add("--shard_dir", help="the prepared splits, unless the study generates speech")
    add("--resume", action="store_true", help="continue a study that was interrupted")

    add(
        "--until",
        choices=("decided",),
        default="",
        help=(
            "train two experiments with no more seeds than needed to see which reaches "
            "the hardest target sooner: 5, 8 or 12 (pairs: 8 or 12)"
        ),
    )

    add_scheduler_arguments(add, "train the runs, one seed a host; docs/studies.md")

    add(
        "--wait_for_host",
        type=float,
        metavar="SECONDS",
        default=600.0,
        help=(
            "after so long without an answer, a host's seeds begin again on another "
            "one; default: %(default)g"
        ),
    )

    add("--dry_run", action="store_true", help="only list the steps")


def run(arguments: argparse.Namespace) -> None:
    """Runs a study and prints its report; with ``--dry_run`` only lists its steps."""
    folder = Path(arguments.run_dir or Path("studies", Path(arguments.gin_file).stem))
    if arguments.dry_run:
        from tfasr.studies.perform import planned, undecidable

        # With --until, all seeds are listed, but training stops once it's decided.
        plan, steps = planned(
            arguments.gin_file,
            arguments.gin_binding,
            arguments.until,
            folder,
            path_of(arguments.shard_dir),
        )
        for number, step in enumerate(steps, 1):
            line = f"{number}/{len(steps)} {step.name}"
            if step.done():
                line += " (done)"

            print(line)

        if not arguments.until:
            for sentence in undecidable(plan):
                print(sentence)

        return

    from tfasr.studies.perform import DECISION_FILE, study

    tls = tls_of(arguments)

    # A client stays connected until the study ends.
    with contextlib.ExitStack() as stack:
        stack.enter_context(_sigterm_like_ctrl_c())
        client = None
        if arguments.scheduler is not None:
            client = stack.enter_context(scheduler_client(arguments.scheduler, tls))

        page = study(
            arguments.gin_file,
            run_dir=folder,
            shard_dir=arguments.shard_dir,
            bindings=arguments.gin_binding,
            resume=arguments.resume,
            until=arguments.until,
            client=client,
            wait_for_host_s=arguments.wait_for_host,
        )

    again = "Make it again with --resume."
    print(read_text(page.parent / "report.txt", again), end="")
    if arguments.until:
        print(f"\n{read_text(folder / DECISION_FILE, again)}", end="")

    print(f"\nThe report with its figures: {page.resolve()}")


@contextlib.contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    """Lets SIGTERM end a study as Ctrl-C does: trainings save their work first.

    SLURM, Kubernetes and systemd send SIGTERM. A job script can't send SIGINT, because
    shells let their background processes ignore it.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
