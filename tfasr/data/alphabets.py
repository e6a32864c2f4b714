"""Which characters or units a recogniser writes: named, listed in a file, or taken from the text.

`tfasr prepare` makes an alphabet from the training transcripts alone and reports what it keeps,
maps and drops before anything is packed. Other splits get the alphabet of the training split.
"""

import io
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tfasr.alphabet import (
    ENGLISH,
    WORD_START,
    Alphabet,
    clusters,
    is_punctuation,
    is_unspaced,
    pause_of,
)
from tfasr.corpora.reading import ListedSplit
from tfasr.corpora.utterance import CorpusSplit, Rejection
from tfasr.data.manifest import INDEX_FILE, read_index
from tfasr.errors import UsageError
from tfasr.kit.config import config_class, require
from tfasr.kit.files import read_text

_SHOWN = 40
_RARE = 5
_LONGEST_TRANSCRIPT_BYTES = 1 << 20
_BPE = 2  # sentencepiece's number of the kind

log = logging.getLogger("tfasr")


@config_class
class AlphabetConfig:
    """What a recogniser writes; the shards and the run keep the result.

    Attributes:
        source: "english" (a-z and the apostrophe), "auto" (the characters of the training
            transcripts), or a file with one character a line.
        mapping: a file of replacements, one a line: a text, a tab, and what is written instead;
            nothing after the tab drops the text. "" for none.
        keep_case: whether upper case is kept.
        keep_punctuation: whether "auto" keeps punctuation marks and symbols.
        units: number of sub-word units that are trained on the training transcripts; 0 for none.
        units_kind: of trained units: "unigram" or "bpe".
        units_model: a file of sentencepiece to use instead of training units; "" for none.
    """

    source: str = "english"
    mapping: str = ""
    keep_case: bool = False
    keep_punctuation: bool = False
    units: int = 0
    units_kind: Literal["unigram", "bpe"] = "unigram"
    units_model: str = ""

    def check(self) -> None:
        require(bool(self.source), self, "source", "english, auto or a file")
        require(self.units >= 0, self, "units", "a number of units, or 0 for characters")
        require(not (self.units and self.units_model), self, "units_model", "empty with units")
        if self.source != "auto":
            require(not self.keep_punctuation, self, "keep_punctuation", "unset without auto")
        if self.source == "english":
            require(not self.keep_case, self, "keep_case", "unset: English is lower case; use auto")


def transcripts(corpus: CorpusSplit) -> Iterator[str]:
    """Yields a split's transcripts without reading any audio."""
    if isinstance(corpus, ListedSplit):
        yield from (item.text for item in corpus.items() if not isinstance(item, Rejection))
    else:
        yield from (utterance.text for utterance in corpus.utterances)


def alphabet_of_split(shard_dir: Path, split: str) -> Alphabet | None:
    """Returns the alphabet of a prepared split, or None if it isn't prepared."""
    folder = shard_dir / split
    if not (folder / INDEX_FILE).is_file():
        return None
    return Alphabet.from_json(read_index(folder)["alphabet"])


def make_alphabet(config: AlphabetConfig, texts: Callable[[], Iterable[str]]) -> Alphabet:
    """Makes an alphabet and logs a report of it.

    Args:
        config: which characters or units.
        texts: returns the training transcripts; called up to two times.

    Raises:
        UsageError: naming the file, line or setting that is wrong, and the remedy.
    """
    characters = None
    if config.source == "english":
        alphabet, characters = Alphabet(), ENGLISH
    elif config.source != "auto":
        characters = _listed_characters(Path(config.source), config.keep_case)
    mapping = _mapping(config) if config.mapping else ()
    if characters != ENGLISH:
        punctuation = "kept" if config.keep_punctuation else "dropped"
        separated = {"separator": None, "keep_case": config.keep_case, "punctuation": punctuation}
        # Until the characters are known, nothing but the space.
        alphabet = Alphabet(characters or " ", **separated)
    alphabet = replace(alphabet, mapping=mapping)
    counts, outside = _count(alphabet, texts(), known=characters is not None)
    if characters is None:
        characters = _seen_characters(counts, config.keep_punctuation)
        alphabet = replace(alphabet, characters=characters)
    _check_mapping(alphabet, config)
    if config.units or config.units_model:
        alphabet = _with_units(alphabet, config, texts)
    for line in _report(alphabet, config, counts, outside):
        log.info("%s", line)
    return alphabet


def _count(
    alphabet: Alphabet, texts: Iterable[str], *, known: bool
) -> tuple[Counter[str], list[int]]:
    """Counts characters before any is dropped, and the utterances outside the alphabet."""
    counts: Counter[str] = Counter()
    outside = [0, 0]  # of all
    everything = replace(alphabet, punctuation="refused", units=())
    for text in texts:
        counts.update(everything.normalise(text))
        outside[0] += known and bool(alphabet.foreign_characters(alphabet.normalise(text)))
        outside[1] += 1
    if not outside[1]:
        raise UsageError("An alphabet needs training transcripts. Received: none.")
    return counts, outside


def _seen_characters(counts: Counter[str], keep_punctuation: bool) -> str:
    marks = {c for c in counts if is_punctuation(c)}
    letters = set(counts) - marks - {" ", WORD_START}
    if not letters:
        raise UsageError("An alphabet needs letters. The training transcripts have none.")
    unspaced = sum(counts[c] for c in letters if is_unspaced(c))
    if 2 * unspaced < sum(counts[c] for c in letters):
        letters.add(" ")
    if keep_punctuation:
        letters |= {c for c in marks if unicodedata.category(c)[0] != "C"} - {WORD_START}
    elif {"'", "\u2019"} & set(counts):
        letters.add("'")
    return "".join(sorted(letters))


def _lines(path: Path, remedy: str) -> Iterator[tuple[str, str]]:
    text = read_text(path, remedy).removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    for number, line in enumerate(text.split("\n"), start=1):
        if content := line.removesuffix("\r"):
            yield f"line {number} of {path}", content


def _listed_characters(path: Path, keep_case: bool) -> str:
    remedy = "An alphabet's file is UTF-8 text with one character a line, each once."
    seen: dict[str, str] = {}
    for place, line in _lines(path, remedy):
        character = unicodedata.normalize("NFC", line)
        fault = ""
        if len(clusters(character)) != 1:
            fault = f"is {line[:20]!r}, not one character"
        elif unicodedata.category(character[0])[0] == "M":
            name = unicodedata.name(character[0], "a mark")
            fault = f"is a combining mark alone, {name}; write it together with a letter"
        elif character in seen:
            fault = f"repeats {character!r} of {seen[character]}"
        elif not keep_case and character != character.lower():
            fault = f"is {character!r} in upper case, but transcripts become lower case; write "
            fault += f"{character.lower()!r}, or add --keep_case"
        elif character == WORD_START:
            fault = f"is {WORD_START!r}, which marks the beginnings of words"
        if fault:
            raise UsageError(f"{place} {fault}. {remedy}")
        seen[character] = place
    letters = set("".join(seen))
    unspaced = sum(map(is_unspaced, letters))
    if not letters - {" "}:
        raise UsageError(f"{path} lists no characters. {remedy}")
    return "".join(sorted(letters | set(" " * (2 * unspaced < len(letters)))))


def _mapping(config: AlphabetConfig) -> tuple[tuple[str, str], ...]:
    remedy = "A mapping's line is a text, a tab, and what is written instead."
    pairs: dict[str, str] = {}
    for place, line in _lines(Path(config.mapping), remedy):
        source, tab, target = unicodedata.normalize("NFC", line).partition("\t")
        source, target = (t if config.keep_case else t.lower() for t in (source, target))
        if not tab or not source or "\t" in target:
            raise UsageError(f"{place} is {line[:40]!r}. {remedy}")
        if pairs.setdefault(source, target) != target:
            raise UsageError(f"{place} maps {source!r} a second time, to something else. {remedy}")
    return tuple(sorted(pairs.items()))


def _check_mapping(alphabet: Alphabet, config: AlphabetConfig) -> None:
    for source, target in alphabet.mapping:
        if foreign := alphabet.foreign_characters(alphabet.normalise(target)):
            raise UsageError(
                f"{config.mapping} must map to characters of the alphabet. It maps {source!r} to "
                f"{target!r} with {foreign}. Change the line, or add them to --alphabet."
            )
        if len(source) == 1 and source in alphabet.characters and config.source != "auto":
            raise UsageError(
                f"{config.mapping} maps {source!r}, which is a character of the alphabet. Remove "
                "it from the mapping or from the alphabet."
            )


def _with_units(
    alphabet: Alphabet, config: AlphabetConfig, texts: Callable[[], Iterable[str]]
) -> Alphabet:
    try:
        import sentencepiece
        from sentencepiece.sentencepiece_model_pb2 import ModelProto
    except ImportError as error:
        raise UsageError(
            f"Units need the package sentencepiece ({error}). Install it: "
            "pip install 'tfasr[units]'."
        ) from error
    if config.units_model:
        source, remedy = config.units_model, "Name a file .model that sentencepiece wrote."
        missing: list[str] = []
        try:
            content = Path(config.units_model).read_bytes()
        except OSError as error:
            raise UsageError(f"--units {source}: {error.strerror}. {remedy}") from None
    else:
        source, remedy = f"--units {config.units}", "Choose another number of units."
        content, missing = _trained_units(sentencepiece, alphabet, config, texts)
    model = ModelProto()
    try:
        model.ParseFromString(content)
        # Type 1 is a unit; others are bytes and marks of unknown text or of a sentence's ends.
        units = tuple((p.piece, float(p.score)) for p in model.pieces if p.type == p.NORMAL)
        least = min((score for _, score in units), default=0.0)
        units += tuple((character, least) for character in missing)
        kind = "bpe" if model.trainer_spec.model_type == _BPE else "unigram"
        if not units:
            raise ValueError("It has no units.")
        return replace(alphabet, units=units, units_kind=kind)
    except Exception as error:  # a damaged file raises protobuf's own DecodeError
        raise UsageError(f"{source} doesn't fit the alphabet. {error} {remedy}") from error


def _trained_units(
    sentencepiece: Any,
    alphabet: Alphabet,
    config: AlphabetConfig,
    texts: Callable[[], Iterable[str]],
) -> tuple[bytes, list[str]]:
    """Returns a model of sentencepiece, and the characters that never occur in the text."""
    plain = map(alphabet.normalise, texts())
    usable = (text for text in plain if text and not alphabet.foreign_characters(text))
    spaced = " " in alphabet.characters
    writable = set(alphabet.characters) - {alphabet.separator, " "}
    if config.units <= len(writable) + spaced:
        raise UsageError(
            f"--units must be more than the alphabet's {len(writable) + spaced} characters, which "
            f"are all units too. Received: {config.units}."
        )
    model = io.BytesIO()
    missing = writable.difference(*map(alphabet.normalise, texts()))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=usable,
            model_writer=model,
            vocab_size=config.units + 1 - len(missing),  # and the unknown text
            model_type=config.units_kind,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=spaced,
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            max_sentence_length=_LONGEST_TRANSCRIPT_BYTES,
            minloglevel=3,
        )
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).rpartition("] ")[2]
        raise UsageError(
            f"{config.units} units can't be trained on this text: {reason} Choose another --units."
        ) from error
    return model.getvalue(), sorted(missing)


def _report(
    alphabet: Alphabet, config: AlphabetConfig, counts: Counter[str], outside: list[int]
) -> Iterator[str]:
    kept = [c for c in alphabet.characters if c != alphabet.separator]
    units = f", in {len(alphabet.units)} {alphabet.units_kind} units" if alphabet.units else ""
    yield (
        f"alphabet {config.source}: {len(kept)} characters{units}, from {outside[1]} training "
        f"transcripts: {' '.join(shown(c) for c in kept[:200])}"
    )
    if alphabet.mapping:
        pairs = ", ".join(f"{s!r} to {t!r}" for s, t in alphabet.mapping[:_SHOWN])
        yield f"  mapped: {pairs}"
    left = Counter({c: n for c, n in counts.items() if c not in kept})
    if alphabet.punctuation == "dropped" and "'" in kept:
        left.pop("\N{RIGHT SINGLE QUOTATION MARK}", None)
    dropped = (
        Counter()
        if alphabet.punctuation == "refused"
        else Counter({c: n for c, n in left.items() if c == " " or is_punctuation(c)})
    )
    pauses = Counter({c: n for c, n in dropped.items() if c != " " and pause_of(c)})
    foreign = left - dropped
    rare = Counter({c: counts[c] for c in kept if 0 < counts[c] < _RARE})
    for name, group in (
        ("dropped", dropped - pauses),
        ("replaced by a space", pauses),
        (f"kept, but seen less than {_RARE} times", rare),
    ):
        if group:
            yield f"  {name}: {counted(group)}"
    if foreign:
        yield (
            f"  outside the alphabet: {counted(foreign)}. They leave out {outside[0]} of "
            f"{outside[1]} utterances: add them to the alphabet, map them, or use --alphabet auto"
        )
    digits = sum(n for c, n in counts.items() if c.isdigit())
    if digits:
        yield f"  {digits} digits: written as they are. Transcripts with spelled numbers are better"


def shown(character: str) -> str:
    """Returns a character as it can be read in a list: a mark on a circle, others by their code."""
    if character == " ":
        return "(space)"
    kind = unicodedata.category(character)[0]
    code = f"U+{ord(character):04X}"
    return {"M": f"\N{DOTTED CIRCLE}{character}", "C": code, "Z": code}.get(kind, character)


def counted(counts: Counter[str]) -> str:
    """Returns characters with how often they occur, the most frequent first."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(order) - _SHOWN} more" if len(order) > _SHOWN else ""
    return ", ".join(f"{shown(c)} {count}" for c, count in order[:_SHOWN]) + more
