"""``tfasr record``: trains your recipe and a track's record in turns, and writes a submission."""

import argparse
from pathlib import Path

from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE, write_whole
from tfasr.ledger.declared import STARTS_FILE
from tfasr.ledger.events import chain_of
from tfasr.studies.records import SUBMISSION_FILE, record, records_table, verify_submission
from tfasr.studies.verify import file_sha256, published, verify_run, verify_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("track", nargs="?", help="a track, such as synthetic_cer_10; tfasr presets lists them")
    add("--gin_file", action="append", default=[], help="the challenger's recipe; repeatable")
    add("--gin_binding", action="append", default=[], help="repeatable")
    add("--run_dir", help="folder for the races' study and the submission")
    add("--shard_dir", help="the prepared splits, unless the track makes its own speech")
    add("--records", default="records", help="accepted submissions; default: %(default)s")
    add("--resume", action="store_true", help="continue a race that was interrupted")
    add("--table", action="store_true", help="only write the table of records, RECORDS/README.md")


def run(arguments: argparse.Namespace) -> None:
    records = Path(arguments.records)
    if arguments.table:
        write_whole(records / "README.md", records_table(records))
        return
    needed = {"TRACK": arguments.track, "--gin_file": arguments.gin_file}
    needed["--run_dir"] = arguments.run_dir
    if missing := [name for name, value in needed.items() if not value]:
        raise UsageError(f"tfasr record needs {', '.join(missing)}; see tfasr help record.")
    submission = record(
        arguments.track,
        arguments.gin_file,
        run_dir=Path(arguments.run_dir),
        shard_dir=arguments.shard_dir and Path(arguments.shard_dir),
        bindings=arguments.gin_binding,
        records=records,
        resume=arguments.resume,
    )
    print((submission / "card.md").read_text(encoding="utf-8"))
    print(f"The submission: {submission.resolve()}")


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="RUN|STUDY|SUBMISSION", help="folders")
    add("--shard_dir", help="the prepared splits, to compare with the data of the training")
    add("--records", default="records", help="accepted submissions; default: %(default)s")
    add("--published", metavar="HASH", help="the folder's published hash; needs a single folder")
    add("--print_hash", action="store_true", help="only print the hash to publish, and the path")


def run_verify(arguments: argparse.Namespace) -> int:
    """``tfasr verify``: checks runs, studies and submissions; exits with 1 if a check fails."""
    shards = arguments.shard_dir and Path(arguments.shard_dir)
    failed = False
    for path in map(Path, arguments.paths):
        names = (SUBMISSION_FILE, STARTS_FILE, EVENTS_FILE)
        file = next((path / name for name in names if (path / name).is_file()), None)
        if file is None:
            raise UsageError(
                f"tfasr verify needs a folder with one of {', '.join(names)}. Received: {path}."
            )
        hashes = [file_sha256(file)] if file.name == SUBMISSION_FILE else chain_of(file)
        if arguments.print_hash:
            print(f"{hashes[-1]}  {path}")
            continue
        if file.name == SUBMISSION_FILE:
            checks = verify_submission(path, shards, Path(arguments.records))
        elif file.name == STARTS_FILE:
            checks = verify_study(path, shards)
        else:
            checks = verify_run(path, path.name, shards)
        more = [published(file, hashes, arguments.published)] if arguments.published else []
        for check in (*checks, *more):
            print(check.line)
            failed |= check.passed is False
    return int(failed)
