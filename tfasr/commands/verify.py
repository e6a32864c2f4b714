"""``tfasr verify``: checks runs, studies and submissions; exits with 1 if a check fails."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from tfasr.data.manifest import file_sha256
from tfasr.errors import UsageError, imported, printable
from tfasr.kit.files import EVENTS_FILE, SUBMISSION_FILE
from tfasr.ledger.declared import STARTS_FILE
from tfasr.ledger.events import chain_of
from tfasr.verifying.run import (
    UNCHECKED_OF_RUNS,
    Check,
    published,
    unchecked,
    verify_run,
)

EXAMPLE = "verify studies/demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the folders to check, and what to compare them with."""
    add = parser.add_argument
    add("paths", nargs="+", metavar="RUN|STUDY|SUBMISSION", help="folders")
    add(
        "--shard_dir",
        help="the prepared splits, to compare with the data of the training",
    )
    add(
        "--records",
        default="records",
        help="accepted submissions; default: %(default)s",
    )
    add(
        "--published",
        metavar="HASH",
        help="the folder's published hash; needs a single folder",
    )
    add(
        "--print_hash",
        action="store_true",
        help="only print the hash to publish, and the path",
    )


def run(arguments: argparse.Namespace) -> int:
    """Checks the folders one after the other and prints a line for each check.

    Returns:
        The exit code: 1 if a check failed, else 0. A check that can't be made, such as
        one of data that aren't there, is no failure.
    """
    if arguments.published and len(arguments.paths) > 1:
        raise UsageError(
            "--published needs a single folder, whose hash it is. Received: "
            f"{len(arguments.paths)} folders."
        )

    shards = arguments.shard_dir and Path(arguments.shard_dir)
    failed = False

    for path in map(Path, arguments.paths):
        file = _main_file(path)

        # A hash that was published earlier must be one of them: the newest of a list of
        # events changes with each event, a submission is never changed.
        if file.name == SUBMISSION_FILE:
            hashes = [file_sha256(file)]
        else:
            hashes = chain_of(file)

        if arguments.print_hash:
            newest = "no hash"
            if hashes:
                newest = hashes[-1]

            print(printable(f"{newest}  {path}", one_line=True))
            continue

        checks, left = _checks(file, shards, Path(arguments.records))
        done = []
        for check in checks:
            print(check.line)
            done.append(check)

        if arguments.published:
            done.append(published(file, hashes, arguments.published))
            print(done[-1].line)

        print(unchecked(done, left))
        failed |= any(check.passed is False for check in done)

    return int(failed)


def _main_file(folder: Path) -> Path:
    """Returns the file that shows whether a folder is a submission, a study or a run.

    Raises UsageError if all of these files are missing.
    """
    names = (SUBMISSION_FILE, STARTS_FILE, EVENTS_FILE)
    for name in names:
        if (folder / name).is_file():
            return folder / name

    raise UsageError(
        f"tfasr verify needs a folder with one of {', '.join(names)}. "
        f"Received: {folder}."
    )


def _checks(
    file: Path, shards: Path | None, records: Path
) -> tuple[Iterable[Check], tuple[str, ...]]:
    """Returns the checks of a folder, and what they leave unchecked.

    Checks are made while they are iterated over, so each one's line appears as soon as
    it is known.

    Args:
        file: the folder's main file, see `_main_file`.
        shards: the prepared splits; None leaves the data unchecked.
        records: the folder of accepted submissions.
    """
    folder = file.parent
    if file.name == EVENTS_FILE:
        return verify_run(folder, folder.name, shards), UNCHECKED_OF_RUNS

    # Only tfasr itself trains studies, so tfasr-measure doesn't contain their checks.
    studies = imported("tfasr.studies.verify", "Verifying a study or a submission")
    all_unchecked = (*UNCHECKED_OF_RUNS, *studies.UNCHECKED_OF_STUDIES)
    if file.name == STARTS_FILE:
        return studies.verify_study(folder, shards), all_unchecked

    submissions = imported("tfasr.studies.records", "Verifying a submission")
    checks = submissions.verify_submission(folder, shards, records)

    return checks, (*all_unchecked, *submissions.UNCHECKED_OF_SUBMISSIONS)
