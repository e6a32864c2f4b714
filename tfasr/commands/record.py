"""``tfasr record``: races your recipe against a track's record; writes a submission."""

import argparse
from pathlib import Path

from tfasr.commands.shared import path_of
from tfasr.errors import UsageError
from tfasr.kit.files import read_text

EXAMPLE = "record synthetic_cer_10 --gin_file fast/demo.gin --run_dir race"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the track, the challenger's recipe, and the folders of race and records."""
    add = parser.add_argument
    add(
        "track",
        nargs="?",
        help="a track, such as synthetic_cer_10; tfasr presets lists them",
    )
    add(
        "--gin_file",
        action="append",
        default=[],
        help="the challenger's recipe; repeatable",
    )
    add("--gin_binding", action="append", default=[], help="repeatable")
    add("--run_dir", help="folder for the races' study and the submission")
    add(
        "--shard_dir", help="the prepared splits, unless the track makes its own speech"
    )
    add(
        "--records",
        default="records",
        help="accepted submissions; default: %(default)s",
    )
    add("--resume", action="store_true", help="continue a race that was interrupted")
    add(
        "--table",
        action="store_true",
        help="only write the table of records, RECORDS/README.md",
    )


def run(arguments: argparse.Namespace) -> None:
    """Races and writes a submission, or with ``--table`` only the table of records.

    Raises:
        UsageError: if the track, the recipe or the folder is missing.
    """
    from tfasr.studies.records import record, write_table

    records = Path(arguments.records)
    if arguments.table:
        write_table(records)
        return

    # argparse can't require them, since --table needs none of them.
    needed = {
        "TRACK": arguments.track,
        "--gin_file": arguments.gin_file,
        "--run_dir": arguments.run_dir,
    }
    missing = [name for name, value in needed.items() if not value]
    if missing:
        raise UsageError(
            f"tfasr record needs {', '.join(missing)}; see tfasr help record."
        )

    submission = record(
        arguments.track,
        arguments.gin_file,
        run_dir=Path(arguments.run_dir),
        shard_dir=path_of(arguments.shard_dir),
        bindings=arguments.gin_binding,
        records=records,
        resume=arguments.resume,
    )
    print(read_text(submission / "card.md", "Restore it from a copy."))
    print(f"The submission: {submission.resolve()}")
