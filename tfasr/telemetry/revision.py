"""Which revision of the user's code a process runs in."""

import subprocess
from pathlib import Path

_PATIENCE_S = 5


def revision(folder: str | Path = ".") -> str | None:
    """Returns the commit that a folder stands at, "+" behind it where files were changed since.

    None outside a git repository, and where git is missing or slow.
    """
    try:
        commit = _git(folder, "rev-parse", "HEAD").strip()
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}{'+' if changed else ''}"


def _git(folder: str | Path, *words: str) -> str:
    # Without the option `status` would rewrite the user's index, and leave its lock if killed.
    command = ["git", "--no-optional-locks", *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE_S, check=True
    )
    return done.stdout
