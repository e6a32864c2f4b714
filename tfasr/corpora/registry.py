"""The corpora by name."""

from collections.abc import Sequence
from pathlib import Path

from tfasr.corpora.json_manifest import read_json_manifest
from tfasr.corpora.librispeech import librispeech_splits, read_librispeech
from tfasr.corpora.reading.folders import found_in, require_folder
from tfasr.corpora.speech_commands import read_speech_commands, speech_commands_splits
from tfasr.corpora.splits import SPLITS, check_split
from tfasr.corpora.synthetic.synthetic import read_synthetic, synthetic_splits
from tfasr.corpora.tsv import read_tsv
from tfasr.corpora.utterance import CorpusSplit
from tfasr.errors import UsageError

_NATIVE = {
    "librispeech": (read_librispeech, librispeech_splits),
    "speech_commands": (read_speech_commands, speech_commands_splits),
    "synthetic": (read_synthetic, synthetic_splits),
}
_LISTED = {"json": (read_json_manifest, ".json"), "tsv": (read_tsv, ".tsv")}

CORPORA = (*_NATIVE, *_LISTED)


def read_split(
    corpus: str,
    corpus_dir: str | Path,
    split: str,
    *,
    manifest: str | Path | None = None,
    subsets: Sequence[str] | None = None,
) -> CorpusSplit:
    """Returns one split of a corpus: what can be used of it, and what cannot with the reasons.

    Args:
        corpus: one of `CORPORA`.
        corpus_dir: the corpus's folder.
        split: "train", "validation" or "test".
        manifest: for "json" and "tsv", the list to read: absolute, or relative to ``corpus_dir``
            or else to the working directory. Without it, ``<split>.json`` or ``<split>.tsv`` in
            ``corpus_dir`` or in its folder ``splits``.
        subsets: for "librispeech", the subset folders to read instead of the split's own.

    Raises:
        UsageError: if a name is unknown, the folder or list is missing or another corpus's, the
            split is empty, or an argument does not belong to the corpus.
    """
    _check_corpus(corpus)
    check_split(split)
    if manifest is not None and corpus not in _LISTED:
        raise UsageError(
            f"--manifest belongs to --corpus {' or '.join(_LISTED)}: {corpus} has its own lists. "
            f"Received: --corpus {corpus} --manifest {manifest}."
        )
    if subsets and corpus != "librispeech":
        raise UsageError(
            f"--subsets belongs to --corpus librispeech. Received: --corpus {corpus} "
            f"--subsets {','.join(subsets)}."
        )
    if corpus == "librispeech":
        return read_librispeech(corpus_dir, split, subsets)
    if corpus in _NATIVE:
        return _NATIVE[corpus][0](corpus_dir, split)
    read, suffix = _LISTED[corpus]
    corpus_dir = require_folder(corpus_dir, "the folder that holds the corpus")
    return read(_find_manifest(corpus_dir, split, suffix, manifest), corpus_dir)


def available_splits(corpus: str, corpus_dir: str | Path) -> list[str]:
    """Returns the splits that `read_split` finds without being told a manifest or subsets.

    Args:
        corpus: one of `CORPORA`.
        corpus_dir: the corpus's folder.

    Raises:
        UsageError: if the corpus is unknown or the folder is not its folder.
    """
    _check_corpus(corpus)
    if corpus in _NATIVE:
        return _NATIVE[corpus][1](corpus_dir)
    corpus_dir = require_folder(corpus_dir, "the folder that holds the corpus")
    suffix = _LISTED[corpus][1]
    return [split for split in SPLITS if any(_usual_lists(corpus_dir, split, suffix))]


def _check_corpus(corpus: str) -> None:
    if corpus not in CORPORA:
        raise UsageError(f"--corpus must be one of {', '.join(CORPORA)}. Received: {corpus!r}.")


def _usual_lists(corpus_dir: Path, split: str, suffix: str) -> list[Path]:
    name = split + suffix
    return [path for path in (corpus_dir / name, corpus_dir / "splits" / name) if path.is_file()]


def _find_manifest(corpus_dir: Path, split: str, suffix: str, manifest: str | Path | None) -> Path:
    if manifest is None:
        usual = _usual_lists(corpus_dir, split, suffix)
        if usual:
            return usual[0]
        raise UsageError(
            f"The list of the split {split!r} must be named with --manifest, or be {split}{suffix} "
            f"in {corpus_dir} or in its folder splits. Found there: {found_in(corpus_dir)}."
        )
    # An absolute path swallows the folder before it.
    candidates = [corpus_dir / manifest, Path(manifest).absolute()]
    for path in candidates:
        if path.is_file():
            return path
    tried = " and ".join(dict.fromkeys(map(str, candidates)))
    raise UsageError(f"--manifest must be a file. Received: {manifest}. There is no {tried}.")
