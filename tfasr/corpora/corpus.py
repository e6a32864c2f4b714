"""A corpus, as ``tfasr prepare`` uses it: functions that find the utterances of its splits."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfasr.corpora.utterance import CorpusSplit


@dataclass(frozen=True)
class Corpus:
    """How to read a corpus of one layout.

    Attributes:
        read: ``read(corpus_dir, split)`` returns a split's utterances, usually by
            `tfasr.corpora.reading.assembly.assemble`. With ``list_suffix`` it is called as
            ``read(list, corpus_dir)``, with ``has_subsets`` as ``read(corpus_dir, split,
            subsets)``.
        splits: ``splits(corpus_dir)`` returns those of "train", "validation" and "test" that are
            in the folder. None with ``list_suffix``: then ``--manifest`` names the list and
            ``--split`` the split.
        list_suffix: such as ".tsv", for a corpus that has one list of utterances per split.
        has_subsets: whether ``--subsets`` chooses parts of a split, as LibriSpeech has.
    """

    read: Callable[..., CorpusSplit]
    splits: Callable[[str | Path], list[str]] | None = None
    list_suffix: str | None = None
    has_subsets: bool = False


def check_corpus(corpus: object) -> None:
    """Raises TypeError or ValueError for what cannot be registered as a corpus."""
    if not isinstance(corpus, Corpus) or not callable(corpus.read):
        raise TypeError(f"it must be a tfasr.corpora.corpus.Corpus. Received: {corpus!r}.")
    if not callable(corpus.splits) and corpus.list_suffix is None:
        raise ValueError("it must have a function splits(corpus_dir), or a list_suffix.")
