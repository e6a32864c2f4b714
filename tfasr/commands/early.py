"""Mistakes that can be found before TensorFlow is loaded, which takes seconds.

`tfasr.cli` calls `check` for each command but those of tfasr-measure, which load no
TensorFlow. A check may read small files, such as the index of prepared data or a run's
list of events, and must not import Keras.
"""

import argparse
from pathlib import Path

from tfasr import errors
from tfasr.commands.settings import check_gin
from tfasr.data.manifest import require_prepared
from tfasr.errors import UsageError
from tfasr.kit.files import EXPERIMENT_FILE, LOCK_FILE, check_owned


def check(arguments: argparse.Namespace) -> None:
    """Raises UsageError for mistakes that can be detected before TensorFlow is loaded.

    Loading it takes seconds, in which a user would wait for a complaint about a flag.
    Everything checked here is checked again where it is used.
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

    if command == "export":
        from tfasr.recognising.spec import check_int8

        check_int8(arguments.to, arguments.int8)

    checkpoint = values.get("checkpoint")
    if checkpoint not in (None, "best", "last") and not Path(checkpoint).is_file():
        rule = '--checkpoint must be "best", "last" or a file.'
        raise UsageError(f"{rule} {errors.received_path(checkpoint, ('best', 'last'))}")

    if values.get("shard_dir") is not None and command != "prepare":
        splits = ("train", "validation")
        if command not in ("train", "estimate"):
            splits = _listed(values.get("split"))

        for split in splits:
            require_prepared(arguments.shard_dir, split)

    if command == "prepare":
        _check_corpus(arguments)
    elif command == "export":
        check_owned(Path(arguments.out), "--out", "part of this export", owned=False)
    elif command == "train":
        _check_new_run(arguments)


def _check_new_run(arguments: argparse.Namespace) -> None:
    """Raises UsageError if a training would begin in the folder of another run."""
    from tfasr.recording.session import events_so_far, has_begun

    if arguments.resume or arguments.dry_run or arguments.cluster:
        return

    run_dir = Path(arguments.run_dir)
    # If a process is training in it now, a later check reports that.
    if not (run_dir / LOCK_FILE).exists() and has_begun(events_so_far(run_dir)):
        raise UsageError(
            f"--run_dir must not contain a run yet. Received: {arguments.run_dir}, which "
            "does. Continue it with --resume, or choose another folder."
        )


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


def _check_corpus(arguments: argparse.Namespace) -> None:
    """Raises UsageError if the recordings or their list are missing."""
    from tfasr.corpora.corpus import CORPORA, find_manifest
    from tfasr.corpora.reading import require_folder

    corpus = arguments.corpus
    folder = arguments.corpus_dir
    split = arguments.split
    made = arguments.language or arguments.voice

    # Prepare will generate the corpus, or a plug-in's corpus may need no folder.
    if made or CORPORA.entry(corpus).attribute is None:
        return

    require_folder(folder, "the folder with the corpus")
    suffix = CORPORA[corpus].list_suffix
    if suffix is not None and split:
        find_manifest(Path(folder), split, suffix, arguments.manifest)


def _listed(value: str | list[str] | None) -> list[str]:
    """Returns a flag's values as a list, whether it can be repeated or not."""
    if isinstance(value, str):
        return [value]

    return value or []
