"""``tfasr study``: trains a list of experiments, each with several seeds, and reports on them."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--gin_file", required=True, help="the experiments, such as study/paper_small.gin")
    add("--gin_binding", action="append", default=[], help="repeatable")
    add("--run_dir", help="folder for runs, logs and report; default: studies/ + the file's name")
    add("--shard_dir", help="the prepared splits, unless the study generates speech")
    add("--resume", action="store_true", help="continue a study that was interrupted")
    until = (
        "train two experiments with no more seeds than needed to see which reaches the "
        "hardest target sooner: 3, 5, 8 or 12"
    )
    add("--until", choices=("decided",), default="", help=until)
    add("--dry_run", action="store_true", help="only list the steps")


def run(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.run_dir or Path("studies", Path(arguments.gin_file).stem))
    if arguments.dry_run:
        from tfasr.studies.perform import alternating, check_until, load_until_plan, undecidable
        from tfasr.studies.plan import load_plan, study_steps

        shard_dir = arguments.shard_dir and Path(arguments.shard_dir)
        # With --until, all seeds are listed, but training stops once it's decided.
        load = load_until_plan if arguments.until else load_plan
        plan = load(arguments.gin_file, arguments.gin_binding)
        if arguments.until:
            check_until(arguments.until, plan)
        steps = study_steps(plan, folder, shard_dir)
        steps = alternating(plan, folder, steps) if arguments.until else steps
        for number, step in enumerate(steps, 1):
            print(f"{number}/{len(steps)} {step.name}{' (done)' if step.done() else ''}")
        for sentence in [] if arguments.until else undecidable(plan):
            print(sentence)
        return
    from tfasr.studies.perform import DECISION_FILE, study

    page = study(
        arguments.gin_file,
        run_dir=folder,
        shard_dir=arguments.shard_dir,
        bindings=arguments.gin_binding,
        resume=arguments.resume,
        until=arguments.until,
    )
    print((page.parent / "report.txt").read_text(encoding="utf-8"), end="")
    if arguments.until:
        print(f"\n{(folder / DECISION_FILE).read_text(encoding='utf-8')}", end="")
    print(f"\nThe report with its figures: {page.resolve()}")
