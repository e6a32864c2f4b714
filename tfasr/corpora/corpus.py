"""The registered corpora: for each, functions that find the utterances of its splits.

A corpus's own file says how its lists are read. Everything else, from duplicates to
unreadable audio, is the same for all (`tfasr.corpora.reading`). `tfasr.data` calls only
`read_split` and `available_splits` here. docs/extending.md shows how to register a
corpus of your own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfasr.corpora.reading import found_in, require_folder
from tfasr.corpora.utterance import SPLITS, CorpusSplit, check_split
from tfasr.errors import UsageError
from tfasr.kit.registry import Registry


@dataclass(frozen=True)
class Corpus:
    """How to read one kind of corpus.

    Attributes:
        read: ``read(corpus_dir, split)`` returns a split's utterances, usually by
            `tfasr.corpora.reading.assemble`. If ``list_suffix`` is set, it is called as
            ``read(list, corpus_dir)``; with ``has_subsets`` as ``read(corpus_dir,
            split, subsets)``.
        splits: ``splits(corpus_dir)`` returns the splits in the folder that ``tfasr
            prepare`` prepares by default, such as "train", "validation" and "test".
            None if ``list_suffix`` is set: then ``--manifest`` names the list and
            ``--split`` the split.
        list_suffix: such as ".tsv", for a corpus that has one list of utterances per
            split.
        has_subsets: whether ``--subsets`` can choose parts of a split, as for
            LibriSpeech.
    """

    read: Callable[..., CorpusSplit]
    splits: Callable[[str | Path], list[str]] | None = None
    list_suffix: str | None = None
    has_subsets: bool = False


def check_corpus(corpus: object) -> None:
    """Raises TypeError or ValueError if an object can't be registered as a corpus."""
    if not isinstance(corpus, Corpus) or not callable(corpus.read):
        raise TypeError(
            f"it must be a tfasr.corpora.corpus.Corpus. Received: {corpus!r}."
        )

    if not callable(corpus.splits) and corpus.list_suffix is None:
        raise ValueError(
            "it must have a function splits(corpus_dir), or a list_suffix."
        )


# All corpora, by the values of ``--corpus``.
CORPORA: Registry[Corpus] = Registry(
    "corpus",
    {
        "librispeech": "tfasr.corpora.librispeech:LIBRISPEECH",
        "speech_commands": "tfasr.corpora.speech_commands:SPEECH_COMMANDS",
        "json": "tfasr.corpora.manifests:JSON",
        "tsv": "tfasr.corpora.manifests:TSV",
        "synthetic": "tfasr.corpora.synthetic:SYNTHETIC",
        "common_voice": "tfasr.corpora.multilingual:COMMON_VOICE",
        "fleurs": "tfasr.corpora.multilingual:FLEURS",
        "mls": "tfasr.corpora.multilingual:MLS",
        "dataset": "tfasr.corpora.toolkits:DATASET",
        "lhotse": "tfasr.corpora.toolkits:LHOTSE",
        "kaldi": "tfasr.corpora.kaldi:KALDI",
        "stm": "tfasr.corpora.stm:STM",
        "tedlium": "tfasr.corpora.stm:TEDLIUM",
    },
    check=check_corpus,
    plural="corpora",
)


def read_split(
    corpus: str,
    corpus_dir: str | Path,
    split: str,
    *,
    manifest: str | Path | None = None,
    subsets: Sequence[str] | None = None,
) -> CorpusSplit:
    """Returns one split of a corpus: its utterances, and what was rejected, with reasons.

    Args:
        corpus: a name in `CORPORA`.
        corpus_dir: the corpus's folder.
        split: such as "train", or a name that the corpus itself has.
        manifest: path of the list for a corpus such as "tsv": absolute, or relative to
            ``corpus_dir`` or else to the working directory. By default it is
            ``<split>.json`` or ``<split>.tsv`` in ``corpus_dir`` or its folder
            ``splits``.
        subsets: the folders that make up the split of "librispeech". Each such folder,
            as "test-other", is also a split.

    Raises:
        UsageError: if the corpus has no such split, or has no manifest or subsets.
    """
    reader = _corpus(corpus)
    check_split(split)
    if manifest is not None and reader.list_suffix is None:
        listed = (name for name in CORPORA if CORPORA[name].list_suffix is not None)
        raise UsageError(
            f"--manifest belongs to --corpus {' or '.join(listed)}: {corpus} has its "
            f"own lists. Received: --corpus {corpus} --manifest {manifest}."
        )

    # Rejected, because a flag without effect would go unnoticed.
    if subsets and not reader.has_subsets:
        divided = (name for name in CORPORA if CORPORA[name].has_subsets)
        raise UsageError(
            f"--subsets belongs to --corpus {' or '.join(divided)}. Received: --corpus "
            f"{corpus} --subsets {','.join(subsets)}."
        )

    if reader.has_subsets:
        return reader.read(corpus_dir, split, subsets)

    if reader.list_suffix is None:
        # The usual names are left to the reader, which knows what is missing.
        if split not in SPLITS and split not in (known := reader.splits(corpus_dir)):
            raise UsageError(
                f"--split must be one that {corpus} has: {', '.join(known)}. Received: "
                f"{split!r}."
            )

        return reader.read(corpus_dir, split)

    corpus_dir = require_folder(corpus_dir, "the folder that holds the corpus")

    return reader.read(
        find_manifest(corpus_dir, split, reader.list_suffix, manifest), corpus_dir
    )


def available_splits(corpus: str, corpus_dir: str | Path) -> list[str]:
    """Returns the splits that `read_split` finds without a manifest or subsets.

    Args:
        corpus: a name in `CORPORA`.
        corpus_dir: the corpus's folder.

    Raises:
        UsageError: if the folder doesn't have the corpus.
    """
    reader = _corpus(corpus)
    if reader.list_suffix is None:
        return list(reader.splits(corpus_dir))

    corpus_dir = require_folder(corpus_dir, "the folder that holds the corpus")

    return [
        split
        for split in SPLITS
        if any(_usual_lists(corpus_dir, split, reader.list_suffix))
    ]


def _corpus(name: str) -> Corpus:
    """Returns a registered corpus; UsageError with all names if it's unknown."""
    if name not in CORPORA:
        raise UsageError(
            f"--corpus must be one of {CORPORA.listed()}. Received: {name!r}."
        )

    return CORPORA[name]


def _usual_lists(corpus_dir: Path, split: str, suffix: str) -> list[Path]:
    """Returns the lists of a split that have one of the usual names, best first."""
    name = split + suffix
    return [
        path
        for path in (corpus_dir / name, corpus_dir / "splits" / name)
        if path.is_file()
    ]


def find_manifest(
    corpus_dir: Path,
    split: str,
    suffix: str,
    manifest: str | Path | None,
) -> Path:
    """Returns the path of a split's list of utterances.

    Args:
        corpus_dir: the corpus's folder, an absolute path.
        split: such as "train".
        suffix: of the corpus's lists, such as ".tsv".
        manifest: as in `read_split`; None for a list of one of the usual names.

    Raises:
        UsageError: if it doesn't exist.
    """
    if manifest is None:
        usual = _usual_lists(corpus_dir, split, suffix)
        if usual:
            return usual[0]

        raise UsageError(
            f"The list of the split {split!r} must be named with --manifest, or be "
            f"{split}{suffix} in {corpus_dir} or in its folder splits. Found there: "
            f"{found_in(corpus_dir)}."
        )

    # If `manifest` is absolute, `/` ignores the folder before it.
    candidates = dict.fromkeys([corpus_dir / manifest, Path(manifest).absolute()])
    for path in candidates:
        if path.is_file():
            return path

    tried = " and ".join(map(str, candidates))
    raise UsageError(
        f"--manifest must be a file. Received: {manifest}. Looked for {tried}."
    )
