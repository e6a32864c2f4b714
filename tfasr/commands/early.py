"""Mistakes that can be found before TensorFlow is loaded, which takes seconds.

`tfasr.cli` calls `check` for each command but those of tfasr-measure, which load no
TensorFlow. A check may read small files, such as the index of prepared data or a run's
list of events, and must not import Keras.
"""

import argparse
from pathlib import Path

from tfasr import errors
from tfasr.commands.settings import check_gin
from tfasr.errors import UsageError
from tfasr.kit.files import EXPERIMENT_FILE


def check(arguments: argparse.Namespace) -> None:
    """Raises UsageError for mistakes that can be detected before TensorFlow is loaded.

    Here are the checks that several commands share; a command's file may have more, in
    a function ``check(arguments)``. Everything is checked again where it is used, since
    Python functions can be called without the command line.
    """
    values = vars(arguments)
    if "gin_file" in values or values.get("gin_binding"):
        check_gin(values.get("gin_file"), values.get("gin_binding") or [])

    command = arguments.command

    for name in ("lexicon", "language_model", "log_probs"):
        if values.get(name) is not None and not Path(values[name]).is_file():
            raise UsageError(
                f"--{name} must be a file. {errors.received_path(values[name])}"
            )

    if command in ("evaluate", "export", "transcribe", "serve", "bench"):
        for run_dir in _listed(values.get("run_dir")):
            _check_run(run_dir)

    checkpoint = values.get("checkpoint")
    if checkpoint not in (None, "best", "last") and not Path(checkpoint).is_file():
        rule = '--checkpoint must be "best", "last" or a file.'
        raise UsageError(f"{rule} {errors.received_path(checkpoint, ('best', 'last'))}")

    # `prepare` writes this folder, all other commands read it.
    if values.get("shard_dir") is not None and command != "prepare":
        splits = ("train", "validation")
        if command not in ("train", "estimate"):
            splits = _listed(values.get("split"))

        # Reading an index needs NumPy, which other commands don't wait for.
        from tfasr.data.manifest import require_prepared

        for split in splits:
            require_prepared(arguments.shard_dir, split)


def _check_run(run_dir: str) -> None:
    """Raises UsageError unless a folder has a run or an export.

    If there are runs inside it, the error names them.
    """
    folder = Path(run_dir)
    if any((folder / name).is_file() for name in (EXPERIMENT_FILE, "recogniser.json")):
        return

    rule = "--run_dir must be a folder that tfasr train or tfasr export wrote."
    inside = sorted(path.parent.name for path in folder.glob(f"*/{EXPERIMENT_FILE}"))
    if inside:
        raise UsageError(
            f"{rule} Received: {run_dir}. Name a run in it: {', '.join(inside)}."
        )

    raise UsageError(f"{rule} {errors.received_path(run_dir)}")


def _listed(value: str | list[str] | None) -> list[str]:
    """Returns a flag's values as a list, whether it can be repeated or not.

    >>> _listed("a"), _listed(["a", "b"]), _listed(None)
    (['a'], ['a', 'b'], [])
    """
    if isinstance(value, str):
        return [value]

    return value or []
