"""Reads other benchmarks' published logs as runs, and writes our runs in their formats.

Each reader checks order, number and units of what it reads: a log whose clock falls,
that holds a restarted run, or whose scores can't be assigned is rejected, with the
line.
"""

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfasr.errors import UsageError, explained
from tfasr.kit.files import EVENTS_FILE
from tfasr.tta.published import mllog, tables
from tfasr.tta.run import Run, load_run

# Within so many bytes a log shows its format; it may begin with other programs' output.
_HEAD_BYTES = 65536


def find_logs(path: str | Path) -> list[Path]:
    """Lists the runs at a path.

    Args:
        path: a run's folder, a published log, or a folder with any of these.

    Raises:
        UsageError: if it finds none.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(
            "A run must be a folder that tfasr train wrote, or a published log. "
            f"Received: {path}, which does not exist."
        )

    if _is_run(path):
        return [path]

    logs: list[Path] = []
    if path.is_dir():
        logs = [run for run in path.iterdir() if _is_run(run)]
    if not logs:
        raise UsageError(
            f"A run must be a folder with {EVENTS_FILE}, or a log in one of the formats "
            f"{sorted(READERS)}. Received: {path}, which has neither."
        )

    # "result_2" comes before "result_10".
    return sorted(logs, key=lambda run: (len(run.name), run.name))


def load_log(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's folder or a published log.

    Args:
        path: the folder or the log.
        name: the run's name in reports; by default the file's.

    Raises:
        UsageError: if it is invalid.
    """
    path = Path(path)
    if not path.is_file():
        return load_run(path, name)

    kind = f"one of {sorted(READERS)}"
    try:
        for program, reader in READERS.items():
            if reader.recognises(path):
                kind = f"as {program} writes it"
                run = reader.read(path, name)
                _ = run.timeline.clock_us  # raises if an event has no usable time
                return run
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(explained(error)[0]) from error
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, csv.Error,
            RecursionError) as error:  # fmt: skip
        raise UsageError(
            f"A log must be {kind}. {path} is not, or is damaged: {error!r}. Leave it "
            "out, or download it again."
        ) from error

    raise UsageError(f"A log must be {kind}. Received: {path}.")


def _is_run(path: Path) -> bool:
    """Whether a path seems to be a run's folder or a published log."""
    try:
        if path.is_dir():
            return (path / EVENTS_FILE).is_file()

        return any(reader.recognises(path) for reader in READERS.values())
    except OSError:
        return True  # reading it will report the error with its path


@dataclass(frozen=True)
class LogFormat:
    """A benchmark's format, as a reader and a writer of runs."""

    suffixes: tuple[str, ...]  # of its files
    mark: bytes  # a pattern that its files have near their beginning
    read: Callable[[Path, str | None], Run]  # takes the file and the run's name
    write: Callable[..., None]  # takes the run and the file

    def recognises(self, path: Path) -> bool:
        """Whether a file seems to be of this format."""
        if path.suffix not in self.suffixes:
            return False

        with path.open("rb") as file:
            return re.search(self.mark, file.read(_HEAD_BYTES)) is not None


mlperf = LogFormat((".txt", ".log"), mllog.PREFIX.encode(), mllog.read, mllog.write)
algoperf = LogFormat(
    (".csv",),
    rb"\A.*accumulated_submission_time",
    tables.read_algoperf,
    tables.write_algoperf,
)
dawnbench = LogFormat(
    (".tsv",),
    rb"\A(\xef\xbb\xbf)?[ \t]*epoch[ \t]+hours\b",
    tables.read_dawnbench,
    tables.write_dawnbench,
)
# The formats by the names that messages and ``tfasr report`` use.
READERS = {"mlperf": mlperf, "algoperf": algoperf, "dawnbench": dawnbench}
