"""Words, and how they come out of running text."""

import re
from collections.abc import Iterable


def split_words(text: str, word_characters: str | None = None) -> list[str]:
    """Returns the words of ``text`` in order.

    Args:
        word_characters: what words are made of; text is cut at every other character. None cuts
            at white space.
    """
    if word_characters is None:
        return text.split()
    if not word_characters:
        return []
    return re.findall(f"[{re.escape(word_characters)}]+", text)


def lexicon_from_transcripts(
    transcripts: Iterable[str], word_characters: str | None = None
) -> list[str]:
    """Returns the distinct words of transcripts, sorted: the paper's dictionary.

    Source: the paper (arXiv 2003.12366), section 2.2.2: built from the training transcripts.
    """
    return sorted({word for text in transcripts for word in split_words(text, word_characters)})
