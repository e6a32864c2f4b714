"""What a corpus is to ``tfasr prepare``: something that finds the utterances of its splits."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfasr.corpora.utterance import CorpusSplit


@dataclass(frozen=True)
class Corpus:
    """How a corpus of some layout is read.

    Attributes:
        read: ``read(corpus_dir, split)`` returns a split's utterances. Of a corpus with a list it
            is ``read(list, corpus_dir)``; of one with subsets ``read(corpus_dir, split, subsets)``.
        splits: ``splits(corpus_dir)`` returns the splits that are there, of "train", "validation"
            and "test". A corpus with a list has none: its splits are named by their lists.
        list_suffix: such as ".tsv", of a corpus whose splits are each a list of utterances.
        has_subsets: whether splits are made of subsets that can be chosen.
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
