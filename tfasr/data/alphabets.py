"""Makes the alphabet that a recogniser writes in, before a corpus is packed.

It stands at the very beginning of the data's way: `tfasr.data.prepare_corpus.prepare`
calls `alphabet_of` once, and shards and runs store the result. An alphabet is English,
listed in a file, or made from the training transcripts alone, so other splits can't
leak into it. Other splits get the alphabet of the training split.

What it keeps, maps and drops is logged before anything is packed, because utterances
with characters outside the alphabet are left out.
"""

import io
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tfasr.alphabet import WORD_START, Alphabet, clusters, is_punctuation, is_unspaced
from tfasr.corpora.reading import ListedSplit
from tfasr.corpora.utterance import CorpusSplit, Rejection
from tfasr.data.manifest import INDEX_FILE, read_index
from tfasr.errors import UsageError, optional_package
from tfasr.kit.config import config_class, require
from tfasr.kit.files import read_bytes
from tfasr.kit.text import text_lines
from tfasr.letters import (
    apostrophes_within_words,
    lower,
    oddities,
    primary_language,
    with_plain_apostrophes,
)
from tfasr.normalisers import check_normaliser, normalised

TRAINING = "train"  # the split that alphabets are made from
# Characters and mappings to list in a line of the log; alphabets of Chinese have
# thousands.
_SHOWN = 60
_EXAMPLES = 5  # in a warning
# sentencepiece silently skips longer sentences; its own limit is 4192 bytes.
_LONGEST_TRANSCRIPT_BYTES = 1 << 20
# Limit for a model of sentencepiece; 32000 units have 0.8 MB.
_MOST_UNITS_BYTES = 64 << 20
_BPE = 2  # sentencepiece's number for byte-pair encoding

log = logging.getLogger("tfasr")


@config_class
class AlphabetConfig:
    """What a recogniser writes; shards and runs store the alphabet made from this.

    Attributes:
        source: "english" (a-z and the apostrophe), "auto" (the characters of the
            training transcripts), or a file with one character per line.
        mapping: a file of replacements, one per line: a text, a tab, and what is
            written instead; nothing after the tab drops the text. "" for none.
        keep_case: whether upper case is kept.
        language: a BCP 47 tag whose rules for case hold, such as tr or az; "" for those
            of most languages.
        normaliser: what transcripts are normalised by before anything else, see
            `tfasr.normalisers.NORMALISERS`; "" for nothing.
        keep_punctuation: whether "auto" keeps punctuation marks and symbols.
        units: number of sub-word units to make from the training transcripts; 0 for
            characters.
        units_kind: "unigram" or "bpe", which sentencepiece trains, or "word": at most
            so many of the most frequent words and all characters, in which other words
            are spelled.
        units_model: a sentencepiece model file whose units to use instead; "" for none.
    """

    source: str = "english"
    mapping: str = ""
    keep_case: bool = False
    language: str = ""
    normaliser: str = ""
    keep_punctuation: bool = False
    units: int = 0
    units_kind: Literal["unigram", "bpe", "word"] = "unigram"
    units_model: str = ""

    def check(self) -> None:
        require(bool(self.source), self, "source", "english, auto or a file")
        require(
            self.units >= 0,
            self,
            "units",
            "a number of units, or 0 for characters",
        )
        require(
            not (self.units and self.units_model),
            self,
            "units_model",
            "empty with units",
        )
        counted = self.units > 0 or self.units_kind != "word"
        require(counted, self, "units_kind", "unigram or bpe without a number of units")
        primary_language(self.language)
        if self.normaliser:
            check_normaliser(self.normaliser, self.language)
            require(not self.keep_case, self, "keep_case", "unset with a normaliser")
            require(
                not self.keep_punctuation,
                self,
                "keep_punctuation",
                "unset with a normaliser",
            )

        if self.source != "auto":
            require(
                not self.keep_punctuation,
                self,
                "keep_punctuation",
                "unset without auto",
            )

        if self.source == "english":
            require(
                not self.keep_case,
                self,
                "keep_case",
                "unset: English is lower case; use auto",
            )


def transcripts(corpus: CorpusSplit) -> Iterator[str]:
    """Yields a split's transcripts in the order of the corpus, as its files spell them.

    Entries that the corpus's reader rejected have no transcript and are skipped. No
    audio is opened, so this is fast even for millions of utterances.
    """
    items = corpus.items() if isinstance(corpus, ListedSplit) else corpus.utterances
    return (item.text for item in items if not isinstance(item, Rejection))


def alphabet_of(
    config: AlphabetConfig,
    shard_dir: Path,
    training: Callable[[], CorpusSplit] | None,
) -> Alphabet:
    """Makes an alphabet from ``training``, or reads that of the prepared shards.

    Args:
        config: how to make it.
        shard_dir: the folder of prepared splits.
        training: lists the training split, anew at each call. None if this call of
            ``tfasr prepare`` doesn't prepare that split.

    Raises:
        UsageError: if the alphabet depends on the training split, which is neither
        given nor prepared yet.
    """
    if training is not None:
        # English needs no look at the transcripts.
        if config == AlphabetConfig():
            return Alphabet()

        return make_alphabet(config, lambda: transcripts(training()))

    folder = shard_dir / TRAINING
    if (folder / INDEX_FILE).is_file():
        return Alphabet.from_json(read_index(folder)["alphabet"])

    if config != AlphabetConfig():
        raise UsageError(
            f"The alphabet is that of the training split, which isn't in {shard_dir} yet. Run "
            f"tfasr prepare for {TRAINING!r} first."
        )

    return Alphabet()


def make_alphabet(
    config: AlphabetConfig, texts: Callable[[], Iterable[str]]
) -> Alphabet:
    """Makes an alphabet and logs what it keeps, maps and drops.

    Args:
        config: how to make it.
        texts: returns the training transcripts from the start. It is called several
            times: characters are counted first, and sub-word units are trained on what
            remains after the alphabet is known. This keeps memory constant for large
            corpora.

    Raises:
        UsageError: naming the file, line or setting that is wrong, and the remedy.
    """
    alphabet = Alphabet()
    listed = config.source not in ("english", "auto")
    if config.source != "english":
        characters = _listed_characters(config) if listed else " "
        punctuation = "kept" if config.keep_punctuation else "dropped"
        alphabet = Alphabet(
            characters,
            None,
            keep_case=config.keep_case,
            punctuation=punctuation,
        )

    alphabet = replace(
        alphabet,
        mapping=_mapping(config),
        language=primary_language(config.language),
        normaliser=config.normaliser,
    )
    # How often each character occurs after the mapping, before marks are dropped.
    counts: Counter[str] = Counter()
    apostrophes: Counter[str] = Counter()  # of all kinds, between letters
    odd: dict[str, Counter[str]] = {}
    number = 0
    # "refused" leaves marks in the text, so that they are counted, too.
    everything = replace(alphabet, punctuation="refused")

    for text in texts():
        for kind, found in oddities(
            normalised(text, config.normaliser, config.language)
        ):
            odd.setdefault(kind, Counter())[found] += 1

        text = everything.normalise(text)
        apostrophes += apostrophes_within_words(text)
        counts.update(with_plain_apostrophes(text))
        number += 1

    if config.source == "auto":
        characters = _seen_characters(counts, apostrophes, config.keep_punctuation)
        alphabet = replace(alphabet, characters=characters)
        # If a mark between them is dropped, two characters may combine into a letter
        # not seen yet.
        outside = (
            alphabet.foreign_characters(alphabet.normalise(text)) for text in texts()
        )
        characters = "".join(sorted(set(characters).union(*outside)))
        alphabet = replace(alphabet, characters=characters)

    for source, target in alphabet.mapping:
        foreign = alphabet.foreign_characters(alphabet.normalise(target))
        if foreign or (config.source != "auto" and source in alphabet.characters):
            raise UsageError(
                f"{config.mapping} must map other texts to characters of the alphabet. It maps "
                f"{source!r} to {target!r}. Change the line, or the alphabet."
            )

    if config.units or config.units_model:
        alphabet = _with_units(alphabet, config, texts)

    for line in _report(alphabet, config, counts, number):
        log.info("%s", line)

    for line in _warnings(odd):
        log.warning("%s", line)

    return alphabet


def _seen_characters(
    counts: Counter[str],
    apostrophes: Counter[str],
    keep_punctuation: bool,
) -> str:
    """Chooses the characters of an "auto" alphabet.

    Args:
        counts: how often each character occurs, with plain apostrophes.
        apostrophes: of all kinds, those between letters, which belong to words, such as
            "don't". Others are quotation marks.
        keep_punctuation: whether the alphabet has marks and symbols, too.

    Raises:
        UsageError: if the transcripts have no letters.
    """
    # Symbols count as punctuation marks.
    marks = {c for c in counts if is_punctuation(c)}
    letters = set(counts) - marks - {" ", WORD_START}
    if not letters:
        raise UsageError(
            "An alphabet needs letters. The training transcripts have none."
        )

    if keep_punctuation:
        marks |= set(apostrophes)
        visible = {c for c in marks if unicodedata.category(c)[0] != "C"}
        letters |= visible - {WORD_START}
    elif set(apostrophes) - letters:
        # Apostrophes that already are letters also begin or end words.
        letters.add("'")

    return _sorted(letters, counts)


def _sorted(letters: set[str], counts: Mapping[str, int]) -> str:
    """Sorts letters, adding the space unless most text is in a script without spaces.

    Sorting makes the alphabet, and with it the classes of a model's output, independent
    of the order of the transcripts.
    """
    unspaced = sum(counts[c] for c in letters if is_unspaced(c))
    # Chinese text with some English words in it still has no spaces.
    spaced = 2 * unspaced < sum(counts[c] for c in letters - {" "} if c in counts)
    if spaced:
        letters = letters | {" "}

    return "".join(sorted(letters))


# Of an alphabet or a mapping; searching for more texts takes minutes.
_MOST_BYTES = 1 << 20


def _lines(path: str, remedy: str) -> Iterator[tuple[str, str]]:
    """Yields the non-empty lines of a text file, in NFC, each with its place for messages."""
    for number, line in enumerate(
        text_lines(path, remedy, most_bytes=_MOST_BYTES), start=1
    ):
        if line:
            yield f"line {number} of {path}", unicodedata.normalize("NFC", line)


def _listed_characters(config: AlphabetConfig) -> str:
    """Reads the characters of an alphabet's file; UsageError naming a line that is wrong."""
    remedy = "An alphabet's file is UTF-8 text with one character a line, each once."
    seen: dict[str, str] = {}

    for place, character in _lines(config.source, remedy):
        fault = ""
        if len(clusters(character)) != 1 or character == WORD_START:
            fault = f"is {character[:20]!r}, not one character of a text"
        elif unicodedata.category(character[0])[0] == "M":
            name = unicodedata.name(character[0], "a mark")
            fault = (
                f"is a combining mark alone, {name}; write it together with a letter"
            )
        elif character in seen:
            fault = f"repeats {character!r} of {seen[character]}"
        elif not config.keep_case and character != lower(character, config.language):
            fault = "is upper case, but transcripts become lower case; write "
            fault += f"{lower(character, config.language)!r}, or add --keep_case"

        if fault:
            raise UsageError(f"{place} {fault}. {remedy}")

        seen[character] = place

    letters = set("".join(seen))
    if not letters - {" "}:
        raise UsageError(f"{config.source} lists no characters. {remedy}")

    return _sorted(letters, Counter(letters))


def _mapping(config: AlphabetConfig) -> tuple[tuple[str, str], ...]:
    """Reads the replacements of ``config.mapping``, sorted; () without such a file.

    Raises:
        UsageError: naming a line that is not a replacement, or replaces a text again.
    """
    remedy = "A mapping's line is a text, a tab, and what is written instead, for each text once."
    pairs: dict[str, str] = {}

    for place, line in _lines(config.mapping, remedy) if config.mapping else ():
        source, tab, target = line.partition("\t")
        if not tab or not source or "\t" in target or source in pairs:
            raise UsageError(f"{place} is {line[:40]!r}. {remedy}")

        pairs[source] = target

    return tuple(sorted(pairs.items()))


def _usable(alphabet: Alphabet, texts: Callable[[], Iterable[str]]) -> Iterator[str]:
    """Yields the training transcripts that can be written in the alphabet.

    The others are left out of the shards, so no unit should be made for them.
    """
    plain = map(alphabet.normalise, texts())
    return (text for text in plain if text and not alphabet.foreign_characters(text))


def _require_room(alphabet: Alphabet, config: AlphabetConfig) -> None:
    """Raises UsageError unless there are more units than characters.

    Each character must be a unit too, or some words could not be spelled.
    """
    least = len(alphabet.unit_characters)
    if config.units <= least:
        raise UsageError(
            f"--units must be more than the alphabet's {least} characters, which are all units too."
            f" Received: {config.units}."
        )


def _with_units(
    alphabet: Alphabet,
    config: AlphabetConfig,
    texts: Callable[[], Iterable[str]],
) -> Alphabet:
    """Adds sub-word units to an alphabet, trained or from ``config.units_model``.

    Raises:
        UsageError: if the model can't be read, or the units don't fit the alphabet.
    """
    if config.units and config.units_kind == "word":
        return _with_words(alphabet, config, texts)

    with optional_package("sentencepiece", "--units", "'tfasr[units]'"):
        import sentencepiece
        from sentencepiece.sentencepiece_model_pb2 import ModelProto

    if config.units_model:
        source = config.units_model
        remedy = "Name a file .model that sentencepiece wrote."
        try:
            content = read_bytes(config.units_model, _MOST_UNITS_BYTES)
        except OSError as error:
            raise UsageError(f"--units {source}: {error.strerror}. {remedy}") from None
        except UsageError as error:
            raise UsageError(f"--units: {error} {remedy}") from None
    else:
        source = f"--units {config.units}"
        remedy = "Choose another number of units."
        content = _trained_units(sentencepiece, alphabet, config, texts)

    model = ModelProto()
    try:
        model.ParseFromString(content)
        # Other types are bytes, and marks for unknown text or a sentence's ends.
        normal = [piece for piece in model.pieces if piece.type == piece.NORMAL]
        units = tuple((piece.piece, float(piece.score)) for piece in normal)
        if config.units:
            units = _complete(units, alphabet)

        kind = "bpe" if model.trainer_spec.model_type == _BPE else "unigram"
        if not units:
            raise ValueError("It has no units.")

        return replace(alphabet, units=units, units_kind=kind)
    except Exception as error:  # a damaged file raises protobuf's own DecodeError
        raise UsageError(
            f"{source} doesn't fit the alphabet. {error} {remedy}"
        ) from error


def _with_words(
    alphabet: Alphabet,
    config: AlphabetConfig,
    texts: Callable[[], Iterable[str]],
) -> Alphabet:
    """Makes units of the most frequent words, scored by their counts, and of characters.

    Characters are scored 0, so that they spell only what no word covers.
    """
    if " " not in alphabet.characters:
        raise UsageError(
            "--units_kind word needs spaces between words, but the training text lacks "
            "them. Use unigram."
        )

    _require_room(alphabet, config)
    words = Counter(word for text in _usable(alphabet, texts) for word in text.split())
    characters = sorted(alphabet.unit_characters)
    most_frequent = words.most_common(config.units - len(characters))
    word_units = ((WORD_START + word, float(count)) for word, count in most_frequent)
    units = (*word_units, *((character, 0.0) for character in characters))

    return replace(alphabet, units=units, units_kind="word")


def _trained_units(
    sentencepiece: Any,
    alphabet: Alphabet,
    config: AlphabetConfig,
    texts: Callable[[], Iterable[str]],
) -> bytes:
    """Trains units with sentencepiece; returns its model file's bytes.

    The transcripts are already normalised, so sentencepiece must not do it again
    ("identity"). One thread makes the same units in every run.
    """
    _require_room(alphabet, config)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_usable(alphabet, texts),
            model_writer=model,
            vocab_size=config.units + 1,  # one more for unknown text
            model_type=config.units_kind,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=" " in alphabet.characters,
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            max_sentence_length=_LONGEST_TRANSCRIPT_BYTES,
            minloglevel=3,
        )
    except (RuntimeError, ValueError, OSError) as error:
        # Its messages begin with the C++ file and line, in brackets.
        reason = str(error).rpartition("] ")[2]
        raise UsageError(
            f"{config.units} units can't be trained on this text: {reason} Choose another --units."
        ) from error

    return model.getvalue()


def _complete(
    units: tuple[tuple[str, float], ...], alphabet: Alphabet
) -> tuple[Any, ...]:
    """Replaces the lowest-scored units by the characters that sentencepiece left out.

    So any text of the alphabet can be written, and the number of units stays that of
    the config. The added characters get the lowest score of all.
    """
    missing = sorted(alphabet.unit_characters - {name for name, _ in units})
    longer = [unit for unit in units if len(unit[0]) > 1]
    # Units of several characters, as single ones are all needed.
    given_up = set(sorted(longer, key=lambda unit: unit[1])[: len(missing)])
    least = min(score for _, score in units)
    remaining = tuple(unit for unit in units if unit not in given_up)

    return (*remaining, *((character, least) for character in missing))


def _report(
    alphabet: Alphabet,
    config: AlphabetConfig,
    counts: Counter[str],
    transcripts: int,
) -> Iterator[str]:
    """Yields the lines of the log: the characters, and what is mapped, dropped or foreign."""
    spoken = [c for c in alphabet.characters if c != alphabet.separator]
    if alphabet.units:
        units = f", in {len(alphabet.units)} {alphabet.units_kind} units"
    else:
        units = ""

    yield (
        f"alphabet {config.source}: {len(spoken)} characters{units}, from {transcripts} training "
        f"transcripts: {counted(dict.fromkeys(spoken, 0))}"
    )
    drops = alphabet.punctuation != "refused"
    outside = {c: n for c, n in counts.items() if c not in spoken}
    dropped = {}
    if drops:
        dropped = {c: n for c, n in outside.items() if c == " " or is_punctuation(c)}

    if alphabet.mapping:
        yield "  mapped: " + ", ".join(
            f"{s!r} to {t!r}" for s, t in alphabet.mapping[:_SHOWN]
        )

    if dropped:
        yield f"  dropped, or a space for a dash: {counted(dropped)}"
    if foreign := {c: n for c, n in outside.items() if c not in dropped}:
        yield (
            f"  outside the alphabet, so their utterances are left out: {counted(foreign)}. Map "
            "them, add them to the alphabet, or use --alphabet auto"
        )


def _warnings(odd: Mapping[str, Counter[str]]) -> Iterator[str]:
    """Yields warnings of what nobody pronounces as written, each with the flag that helps."""
    remedies = {"numbers": "--normalise spoken-1 writes them in words"}
    for kind, counts in odd.items():
        shown = ", ".join(text for text, _ in counts.most_common(_EXAMPLES))
        more = ", ..." if len(counts) > _EXAMPLES else ""
        remedy = remedies.get(
            kind, "--normalise plain-1 removes them or writes plain letters"
        )
        yield (
            f"{sum(counts.values())} {kind} in the training transcripts ({shown}{more}) are left "
            f"as they are: {remedy}, and so does a --mapping"
        )


def counted(counts: Mapping[str, int]) -> str:
    """Lists characters with their counts, the most frequent first.

    Combining marks are shown on a dotted circle, and invisible characters by their code
    points. A count of 0 is left out. Of more than 60 characters, the rest is only
    counted. For example, ``{"a": 2, " ": 5}`` becomes "space 5, a 2".
    """
    names = {"M": "\N{DOTTED CIRCLE}{}", "Z": "U+{:04X}", "C": "U+{:04X}"}
    # Equally frequent ones by code point, so that the log is the same in each run.
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    listed = []

    for character, count in order[:_SHOWN]:
        form = names.get(unicodedata.category(character)[0], "{}")
        if character == " ":
            shown = "space"
        elif "04X" in form:
            shown = form.format(ord(character))
        else:
            shown = form.format(character)

        listed.append(f"{shown} {count}" if count else shown)

    more = f" and {len(order) - _SHOWN} more" if len(order) > _SHOWN else ""

    return (", " if any(counts.values()) else " ").join(listed) + more
