"""Mistakes that can be found before TensorFlow is loaded, which takes seconds."""

import argparse
from pathlib import Path

from tfasr import errors
from tfasr.commands.settings import check_gin
from tfasr.data.manifest import require_prepared
from tfasr.errors import UsageError
from tfasr.kit.files import EXPERIMENT_FILE, LOCK_FILE, check_owned


def check(arguments: argparse.Namespace) -> None:
    """Raises UsageError for mistakes that can be detected before TensorFlow is loaded.

    Everything checked here is checked again where it is used.

    Args:
        arguments: the parsed flags of any command that isn't one of tfasr-measure.
    """
    values = vars(arguments)
    command = arguments.command
    if "gin_file" in values or values.get("gin_binding"):
        check_gin(values.get("gin_file"), values.get("gin_binding") or [])

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

    if values.get("shard_dir") is not None and command != "prepare":
        _check_shards(arguments)

    # The checks of single commands come last.
    if command == "prepare":
        _check_corpus(arguments)
    if command == "export":
        _check_export(arguments)
    if command == "train":
        _check_new_run(arguments)


def _check_shards(arguments: argparse.Namespace) -> None:
    """Raises UsageError if a split that the command reads hasn't been prepared."""
    if arguments.command in ("train", "estimate"):
        splits = ["train", "validation"]
    else:
        splits = _listed(getattr(arguments, "split", None))

    for split in splits:
        require_prepared(arguments.shard_dir, split)


def _check_export(arguments: argparse.Namespace) -> None:
    """Raises UsageError if the format can't have --int8, or --out holds other files."""
    # Imported here, as only exporting needs it.
    from tfasr.recognising.spec import check_int8

    check_int8(arguments.to, arguments.int8)
    check_owned(Path(arguments.out), "--out", "part of this export", owned=False)


def _check_new_run(arguments: argparse.Namespace) -> None:
    """Raises UsageError if --run_dir holds a run, and the command doesn't continue it."""
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
    """Raises UsageError unless a folder holds a trained or exported recogniser."""
    if not any(
        Path(run_dir, name).is_file() for name in (EXPERIMENT_FILE, "recogniser.json")
    ):
        rule = "--run_dir must be a folder that tfasr train or tfasr export wrote."
        inside = sorted(
            path.parent.name for path in Path(run_dir).glob(f"*/{EXPERIMENT_FILE}")
        )
        if inside:
            raise UsageError(
                f"{rule} Received: {run_dir}. Name a run in it: {', '.join(inside)}."
            )

        raise UsageError(f"{rule} {errors.received_path(run_dir)}")


def _check_corpus(arguments: argparse.Namespace) -> None:
    """Raises UsageError if the corpus's folder or a split's list is missing."""
    from tfasr.corpora.corpus import CORPORA, find_manifest
    from tfasr.corpora.reading import require_folder

    corpus = arguments.corpus
    folder = arguments.corpus_dir
    split = arguments.split
    made = arguments.language or arguments.voice
    if made or CORPORA.entry(corpus).attribute is None:
        # Prepare will generate the corpus, or a plug-in's corpus may need no folder.
        return

    require_folder(folder, "the folder with the corpus")
    suffix = CORPORA[corpus].list_suffix
    if suffix is not None and split:
        find_manifest(Path(folder), split, suffix, arguments.manifest)


def _listed(value: str | list[str] | None) -> list[str]:
    """Returns the values of a flag that takes one value, several or none, as a list."""
    return [value] if isinstance(value, str) else value or []
