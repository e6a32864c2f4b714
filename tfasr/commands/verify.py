"""``tfasr verify``: checks runs, studies and submissions; exits with 1 if a check
fails.
"""

import argparse
from pathlib import Path

from tfasr.commands.shared import path_of
from tfasr.errors import UsageError, printable
from tfasr.kit.files import EVENTS_FILE

EXAMPLE = "verify studies/demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    from tfasr.ledger.declared import STARTS_FILE
    from tfasr.ledger.events import chain_of
    from tfasr.studies.records import (
        SUBMISSION_FILE,
        UNCHECKED_OF_SUBMISSIONS,
        verify_submission,
    )
    from tfasr.studies.verify import (
        UNCHECKED_OF_RUNS,
        UNCHECKED_OF_STUDIES,
        file_sha256,
        published,
        unchecked,
        verify_run,
        verify_study,
    )

    if arguments.published and len(arguments.paths) > 1:
        raise UsageError(
            "--published needs a single folder, whose hash it is. Received: "
            f"{len(arguments.paths)} folders."
        )

    shards = path_of(arguments.shard_dir)
    failed = False
    for path in map(Path, arguments.paths):
        # The file that shows what the folder is also has, or is, the chain of hashes.
        names = (SUBMISSION_FILE, STARTS_FILE, EVENTS_FILE)
        file = next((path / name for name in names if (path / name).is_file()), None)
        if file is None:
            raise UsageError(
                f"tfasr verify needs a folder with one of {', '.join(names)}. Received: {path}."
            )

        hashes = [file_sha256(file)] if file.name == SUBMISSION_FILE else chain_of(file)
        if arguments.print_hash:
            newest = hashes[-1] if hashes else "no hash"
            print(printable(f"{newest}  {path}", one_line=True))
            continue

        if file.name == SUBMISSION_FILE:
            checks = verify_submission(path, shards, Path(arguments.records))
            left = (
                *UNCHECKED_OF_RUNS,
                *UNCHECKED_OF_STUDIES,
                *UNCHECKED_OF_SUBMISSIONS,
            )
        elif file.name == STARTS_FILE:
            checks = verify_study(path, shards)
            left = (*UNCHECKED_OF_RUNS, *UNCHECKED_OF_STUDIES)
        else:
            checks = verify_run(path, path.name, shards)
            left = UNCHECKED_OF_RUNS

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
