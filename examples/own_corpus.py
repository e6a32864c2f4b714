"""A corpus of your own: one folder per split, with a text file next to each recording.

tfasr prepare --import examples/own_corpus.py --corpus sound_and_text --corpus_dir DIR ...
"""

from pathlib import Path

from tfasr.corpora.corpus import CORPORA, Corpus
from tfasr.corpora.reading import ListedUtterance, assemble
from tfasr.corpora.utterance import SPLITS


def splits(corpus_dir):
    """Returns the splits that the folder holds, each in a folder of its name."""
    return [split for split in SPLITS if Path(corpus_dir, split).is_dir()]


def read(corpus_dir, split):
    """Returns a split's utterances; `assemble` reads durations and leaves out unusable
    ones.
    """
    folder = Path(corpus_dir, split).resolve()
    entries = [
        ListedUtterance(
            id=text.stem,
            audio_path=text.with_suffix(".wav"),
            text=text.read_text(encoding="utf-8"),
            speaker=text.stem.partition("-")[0],
            origin=str(text),
        )
        for text in sorted(folder.glob("*.txt"))
    ]
    return assemble(str(folder), entries)


CORPORA.register("sound_and_text", Corpus(read, splits))
