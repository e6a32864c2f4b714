"""Breaks copies of tfasr on purpose, to test whether the campaigns notice.

For each of several guards, ``python -m campaigns.sabotage`` copies the project, removes the guard
and runs `campaigns.short` on the copy, which must find a violation. Exits with 1 if any removal
goes unnoticed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_COPIED = ("tfasr", "campaigns", "gin")


@dataclass(frozen=True)
class Sabotage:
    """The removal of a guard from a source file.

    Attributes:
        what: describes the fault that results.
        file: the path of the file to change, relative to the project.
        before: the code to replace; it must occur exactly once in the file.
        after: the code that replaces it.
    """

    what: str
    file: str
    before: str
    after: str


SABOTAGES = (
    Sabotage(
        "the ledger is not synced before a checkpoint is published",
        "tfasr/training/phases.py",
        "                ledger.sync()\n",
        "",
    ),
    Sabotage(
        "a step is booked twice",
        "tfasr/training/hooks/record.py",
        '        run.ledger.event("train_step", facts, **where)\n',
        '        run.ledger.event("train_step", facts, **where)\n' * 2,
    ),
    Sabotage(
        "a file's new name is not synced",
        "tfasr/kit/files.py",
        "        raise\n    sync_folder(path.parent)\n",
        "        raise\n",
    ),
    Sabotage(
        "files are overwritten in place",
        "tfasr/kit/files.py",
        "    partial = path.with_name(path.name + PARTIAL_SUFFIX) if partial is None else "
        "Path(partial)\n    try:\n",
        "    partial = path\n    try:\n",
    ),
    Sabotage(
        "a resumed run forgets its optimizer's state",
        "tfasr/training/checkpoint.py",
        "        variable.assign(arrays[name])\n",
        "        if int(name[:4]) < len(model.variables):\n"
        "            variable.assign(arrays[name])\n",
    ),
)


def broken(sabotage: Sabotage, tree: Path) -> None:
    """Copies the project and removes a guard from the copy."""
    shutil.rmtree(tree, ignore_errors=True)
    for name in _COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    file = tree / sabotage.file
    text = file.read_text()
    if text.count(sabotage.before) != 1:
        sys.exit(f"{sabotage.file} must contain this code exactly once: {sabotage.before!r}")
    file.write_text(text.replace(sabotage.before, sabotage.after))


def violations(tree: Path, out: Path) -> tuple[int, list[str]]:
    """Runs the short campaigns on a copy; returns their exit status and output lines."""
    shutil.rmtree(out, ignore_errors=True)
    ended = subprocess.run(
        [sys.executable, "-m", "campaigns.short", "--out", str(out)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = ended.stdout.splitlines()
    whole = any(line.endswith(" violations") for line in found)
    return ended.returncode, found if whole else [*found, *ended.stderr.splitlines()[-5:]]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.sabotage", description=__doc__)
    parser.add_argument("--only", default="", help="run only those whose description has this text")
    chosen = [one for one in SABOTAGES if parser.parse_args().only in one.what]
    unnoticed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for sabotage in chosen:
            broken(sabotage, Path(temporary) / "tree")
            status, said = violations(Path(temporary) / "tree", Path(temporary) / "out")
            counted = [line for line in said if line.endswith(" violations")]
            noticed = status == 1 and bool(counted)
            unnoticed += not noticed
            print(f"{'noticed' if noticed else 'NOT NOTICED'}: {sabotage.what}", flush=True)
            for line in said[-4:] if noticed else said:
                print(f"    {line[:300]}", flush=True)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} noticed")
    sys.exit(1 if unnoticed else 0)


if __name__ == "__main__":
    main()
