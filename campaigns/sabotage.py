"""Checks that the campaigns find bugs: breaks copies of tfasr, each in a different way.

``python -m campaigns.sabotage`` copies the project, puts one fault into the copy, such
as a missing sync, and runs `campaigns.short` on it, which must report a violation. It
does this for each fault in turn, and exits with 1 if one goes unnoticed.
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
    """A fault to put into tfasr.

    Attributes:
        what: what goes wrong, as a sentence.
        file: the file to change.
        before: the text to replace; it must occur exactly once.
        after: its replacement.
    """

    what: str
    file: str
    before: str
    after: str


SABOTAGES = (
    Sabotage(
        "the ledger is not synced before a checkpoint is published",
        "tfasr/training/loop.py",
        "                ledger.sync()\n",
        "",
    ),
    Sabotage(
        "a step is recorded twice",
        "tfasr/training/hooks/record.py",
        "        run.ledger.write(recorded, epoch_num=state.epoch, step=state.step)\n",
        "        run.ledger.write(recorded, epoch_num=state.epoch, step=state.step)\n"
        * 2,
    ),
    Sabotage(
        "a folder is not synced after a file in it is renamed",
        "tfasr/kit/files.py",
        "        raise\n\n    sync_folder(path.parent)\n",
        "        raise\n",
    ),
    Sabotage(
        "files are overwritten in place",
        "tfasr/kit/files.py",
        "    with named_in_errors(partial):\n        file = new_file(partial)\n",
        "    partial = path\n    file = path.open('wb')\n",
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
    """Makes a copy of the project with the fault."""
    shutil.rmtree(tree, ignore_errors=True)
    for name in _COPIED:
        shutil.copytree(
            ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    file = tree / sabotage.file
    text = file.read_text()
    if text.count(sabotage.before) != 1:
        sys.exit(
            f"{sabotage.file} must contain this text exactly once: {sabotage.before!r}"
        )
    file.write_text(text.replace(sabotage.before, sabotage.after))


def violations(tree: Path, out: Path) -> tuple[int, list[str]]:
    """Runs the short campaigns on a copy; returns their exit status and output."""
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
    return ended.returncode, found if whole else [
        *found,
        *ended.stderr.splitlines()[-5:],
    ]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m campaigns.sabotage", description=__doc__
    )
    parser.add_argument(
        "--only", default="", help="only faults whose description contains this"
    )
    chosen = [one for one in SABOTAGES if parser.parse_args().only in one.what]
    unnoticed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for sabotage in chosen:
            broken(sabotage, Path(temporary) / "tree")
            status, said = violations(Path(temporary) / "tree", Path(temporary) / "out")
            counted = [line for line in said if line.endswith(" violations")]
            noticed = status == 1 and bool(counted)
            unnoticed += not noticed
            print(
                f"{'noticed' if noticed else 'NOT NOTICED'}: {sabotage.what}",
                flush=True,
            )
            for line in said[-4:] if noticed else said:
                print(f"    {line[:300]}", flush=True)

    print(f"{len(chosen) - unnoticed} of {len(chosen)} noticed")
    sys.exit(1 if unnoticed else 0)


if __name__ == "__main__":
    main()
