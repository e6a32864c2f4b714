"""Alphabets and units that `tfasr prepare` takes from files and from the training text."""

import json
import logging
import random
import unicodedata
from pathlib import Path

import pytest
import soundfile
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.tones import SHARDS, TONES_GIN
from tfasr.alphabet import (
    ENGLISH,
    Alphabet,
    clusters,
    is_punctuation,
    join_words,
    words,
)
from tfasr.cli import parse
from tfasr.cli import run as run_command
from tfasr.data.alphabets import AlphabetConfig, make_alphabet
from tfasr.data.packing import Packing
from tfasr.data.shards import RECORD, ShardConfig, open_split
from tfasr.errors import UsageError
from tfasr.training.from_gin import load_config

GERMAN = [
    "Grüß Gott, Welt!",
    "Über-Mut tut selten gut.",
    "Die Straße",
    "geht's dir gut?",
] * 8


def made(texts: list[str], **config) -> Alphabet:
    return make_alphabet(AlphabetConfig(**config), lambda: iter(texts))


def listed(folder: Path, text: str | bytes) -> str:
    """Writes a list of letters and returns its path."""
    path = folder / "letters.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_english_is_the_alphabet_of_before():
    assert made(["hello"]) == Alphabet()
    assert Alphabet().to_json() == {"characters": ENGLISH, "separator": "_"}


def test_kept_english_shards_are_those_that_would_be_packed_today():
    split = open_split(SHARDS, "train")
    experiment = load_config(str(TONES_GIN)).experiment
    shards = ShardConfig(**split.index["packing"])

    content = Packing(
        Alphabet(), experiment.features, shards, experiment.model
    ).content()

    assert content == {name: split.index[name] for name in content}

    records = tf.data.TFRecordDataset(
        split.files, split.index["packing"]["compression"]
    )
    texts = {u.position: u.text for u in split.utterances}

    for record in records:
        fields = tf.io.parse_single_example(record, RECORD)
        labels = tf.sparse.to_dense(fields["labels"]).numpy().tolist()

        assert Alphabet().encode(texts[int(fields["position"])]) == labels
        assert Alphabet().decode(labels) == texts[int(fields["position"])]


def test_letters_of_the_text_are_kept_and_marks_dropped():
    alphabet = made(GERMAN, source="auto")

    assert alphabet.characters == "".join(
        sorted(
            set(" 'üßö" + "grüß gott weltübermuttutseltengutdiestraßegehts")
            & set("'".join(GERMAN).lower())
        )
    )
    assert alphabet.normalise(GERMAN[0]) == "grüß gott welt"
    assert alphabet.normalise(GERMAN[1]) == "über mut tut selten gut"
    assert (
        alphabet.normalise("geht\u2019s \u2018dir\u2019 \u00bbgut\u00ab…")
        == "geht's dir gut"
    )
    assert alphabet.foreign_characters(alphabet.normalise("jô")) == ["j", "ô"]


def test_letters_that_meet_where_a_mark_is_dropped_may_become_one():
    alphabet = made(["\u1100-\u1161 \u1100.\u1161 ab"], source="auto")

    assert alphabet.normalise("\u1100.\u1161") == "가"
    assert not alphabet.foreign_characters("가")


def test_case_and_punctuation_can_be_kept():
    alphabet = made(GERMAN, source="auto", keep_case=True, keep_punctuation=True)

    for text in GERMAN:
        assert alphabet.normalise(text) == text
        assert alphabet.decode(alphabet.encode(text)) == text

    assert alphabet.normalise("Gut;") == "Gut"


def test_the_report_says_what_is_kept_mapped_and_dropped(tmp_path, caplog):
    mapping = listed(tmp_path, "ß\tss\nwelt\t\n")
    with caplog.at_level(logging.INFO, "tfasr"):
        alphabet = made([*GERMAN, "zwei 2"], source="auto", mapping=mapping)

    report = "\n".join(caplog.messages)

    assert alphabet.normalise("Grüß Welt") == "grüss"
    assert "'ß' to 'ss'" in report
    assert "dropped, or a space for a dash: ! 8, , 8, - 8, . 8, ? 8" in report
    assert "1 numbers in the training transcripts (2) are left as they are" in report


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["打开厨房的灯。", "关上 电视"], "厨房打开关上的灯电视"),
        (["नमस्ते दुनिया।"], " नमस्तेदुनिया"),
        (["مرحبا، كيف الحال؟"], " مرحباكيفلا"),
        (["한국어를 말해요"], " 한국어를말해요"),
        (["สวัสดี ชาวโลก"], "สวัดีชาโลก"),
        (["ΟΔΟΣ Άνω"], " οδςάνω"),
    ],
)
def test_an_alphabet_is_made_of_the_letters_of_any_script(texts, expected):
    alphabet = made(texts, source="auto")
    assert set(alphabet.characters) == set(expected)

    for text in texts:
        written = alphabet.normalise(text)

        assert alphabet.decode(alphabet.encode(written)) == written
        assert (" " in written) == (" " in expected)

    assert Alphabet.from_json(json.loads(json.dumps(alphabet.to_json()))) == alphabet


def test_words_and_characters_of_scripts():
    assert words("打开厨房 ok") == ["打", "开", "厨", "房", "ok"]
    assert words("नमस्ते दुनिया") == ["नमस्ते", "दुनिया"]
    assert words("ที่นี่") == ["ที่", "นี่"]
    assert clusters("नमस्ते") == ["न", "म", "स्ते"] or clusters("नमस्ते") == [
        "न",
        "म",
        "स्",
        "ते",
    ]
    assert join_words(words("打开厨房")) == "打开厨房"
    assert join_words(["a", "b"]) == "a b"


def test_an_alphabet_is_read_from_a_file_of_letters(tmp_path):
    path = listed(tmp_path, "\ufeffa\r\nb\n\u0065\u0301\nं\n".replace("ं\n", "कि\n"))

    assert set(made(["ab"], source=path).characters) == set(" abéकि")
    assert (
        made(["AB"], source=listed(tmp_path, "A\na\n"), keep_case=True).characters
        == " Aa"
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("a\nb\na\n", "line 3 of .* repeats 'a' of line 1"),
        ("\u00e9\ne\u0301\n", "line 2 of .* repeats 'é' of line 1"),
        ("a\n\u0301\n", "line 2 of .* combining mark alone, COMBINING ACUTE ACCENT"),
        ("a\nbc\n", "line 2 of .* 'bc', not one character"),
        ("a\nB\n", "line 2 of .* upper case.*'b', or add --keep_case"),
        ("a\n\u2581\n", "not one character"),
        ("\n\n", "lists no characters"),
        ("a\nß\n".encode("latin-1"), "must be UTF-8"),
    ],
)
def test_wrong_alphabets_files_are_refused_by_line(tmp_path, content, fault):
    with pytest.raises(UsageError, match=fault):
        made(["ab"], source=listed(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("é e\n", "line 1 of .*a tab"),
        ("é\te\né\ti\n", "line 2 of .*each text once"),
        ("é\tx7\n", "maps 'é' to 'x7'"),
        ("a\te\n", "must map other texts.* maps 'a'"),
    ],
)
def test_wrong_mappings_are_refused_by_line(tmp_path, content, fault):
    with pytest.raises(UsageError, match=fault):
        made(["ab"], mapping=listed(tmp_path, content))


def test_a_mapping_of_megabytes_is_refused_at_once(tmp_path):
    lines = "".join(f"é{number}\te\n" for number in range(200_000))

    with pytest.raises(UsageError, match="At most 1048576 can be read"):
        made(["ab"], mapping=listed(tmp_path, lines))


def test_settings_that_contradict_each_other_are_refused():
    for config in (
        {"keep_case": True},
        {"keep_punctuation": True},
        {"units": -1},
        {"units": 9, "units_model": "x"},
        {"source": ""},
    ):
        with pytest.raises(ValueError, match="AlphabetConfig"):
            AlphabetConfig(**config)


def test_gin_binds_an_alphabet_and_flags_override_it():
    bindings = ["AlphabetConfig.source = 'auto'", "AlphabetConfig.keep_case = True"]

    assert load_config(None, bindings).alphabet == AlphabetConfig(
        source="auto", keep_case=True
    )
    assert "AlphabetConfig" not in load_config(None).operative
    with pytest.raises(UsageError, match="units must be a number of units"):
        load_config(None, ["AlphabetConfig.units = -4"])


def test_what_makes_texts_comparable_is_described():
    assert Alphabet().text_rule == "NFC, lower case, single spaces"

    hindi = Alphabet(
        "कि ", None, keep_case=True, punctuation="dropped", mapping=(("a", "b"),)
    )

    for part in (
        "case kept",
        "punctuation dropped",
        "mapping",
        "characters with their marks",
    ):
        assert part in hindi.text_rule


def test_a_text_rule_says_where_characters_are_words():
    assert "each character without spaces a word" in Alphabet("打开", None).text_rule


def test_units_change_no_text_rule():
    units = Alphabet("ab", None, (("a", -1.0), ("b", -1.0)))

    assert units.text_rule == Alphabet("ab", None).text_rule
    assert units.units_fact["count"] == 2


@pytest.fixture(scope="module")
def sentencepiece():
    return pytest.importorskip(
        "sentencepiece", reason="needs pip install 'tfasr[units]'"
    )


@pytest.fixture(scope="module")
def texts_of_few_syllables():
    """Sixty texts whose words are pairs of ten syllables."""
    chosen = random.Random(1).choices
    parts = ["the", "cat", "on", "mat", "sat", "rat", "is", "dog", "run", "hen"]
    return [" ".join("".join(chosen(parts, k=2)) for _ in range(4)) for _ in range(60)]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("source", ["auto", "english"])
def test_units_spell_every_text(sentencepiece, texts_of_few_syllables, kind, source):
    texts = texts_of_few_syllables

    alphabet = made(texts, source=source, units=40, units_kind=kind)

    assert (alphabet.num_classes, alphabet.blank_id) == (41, 40)
    for text in [*texts, "tttt", "zebra's"]:
        if not alphabet.foreign_characters(text):
            assert alphabet.decode(alphabet.encode(text)) == text

    assert len(alphabet.encode(texts[0])) < len(texts[0])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("source", ["auto", "english"])
def test_equal_texts_make_equal_units(
    sentencepiece, texts_of_few_syllables, kind, source
):
    texts = texts_of_few_syllables

    alphabet = made(texts, source=source, units=40, units_kind=kind)

    again = made(texts, source=source, units=40, units_kind=kind)
    assert (
        again
        == alphabet
        == Alphabet.from_json(json.loads(json.dumps(alphabet.to_json())))
    )


def test_frequent_words_are_units_and_others_are_spelled():
    texts = ["b five five", "five b oh", "oh two b b"]
    # Ten are characters.
    alphabet = made(texts, source="auto", units=13, units_kind="word")

    assert [alphabet.symbols[i] for i in alphabet.encode("b five oh two")] == [
        *("▁b", "▁five", "▁oh", "▁", "t", "w", "o"),
    ]
    for text in [*texts, "bob"]:
        assert alphabet.decode(alphabet.encode(text)) == text
    assert alphabet == Alphabet.from_json(json.loads(json.dumps(alphabet.to_json())))
    with pytest.raises(UsageError, match="more than the alphabet's 10 characters"):
        made(texts, source="auto", units=10, units_kind="word")
    with pytest.raises(ValueError, match="unigram or bpe without a number of units"):
        made(texts, units_kind="word")
    with pytest.raises(UsageError, match="needs spaces"):
        made(["你好 世界", "世界"], source="auto", units=9, units_kind="word")


SENTENCES = ["grüß gott welt", "über mut tut selten gut", "die straße geht dir gut"] * 9


def trained_units(sentencepiece, folder, kind):
    """The file of a SentencePiece model of the sentences."""
    (folder / "text").write_text("\n".join(SENTENCES), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "units"),
        vocab_size=28,
        model_type=kind,
        character_coverage=1.0,
        minloglevel=3,
    )
    return str(folder / "units.model")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_words_are_cut_as_sentencepiece_cuts_them(sentencepiece, tmp_path, kind):
    model = trained_units(sentencepiece, tmp_path, kind)

    alphabet = made(SENTENCES, source="auto", units_model=model)
    theirs = sentencepiece.SentencePieceProcessor(model_file=model)

    for text in [*SENTENCES[:3], "dir tut die welt gut", "tutu"]:
        assert [
            alphabet.symbols[i] for i in alphabet.encode(text)
        ] == theirs.encode_as_pieces(text)


def test_a_units_model_of_other_characters_is_refused(sentencepiece, tmp_path):
    model = trained_units(sentencepiece, tmp_path, "unigram")

    with pytest.raises(UsageError, match="units.model doesn't fit.*ß"):
        made(["hello"], units_model=model)
    with pytest.raises(UsageError, match=r"doesn't fit.*missing characters: \['q'\]"):
        made([*SENTENCES, "quer"], source="auto", units_model=model)


def test_a_damaged_units_model_is_refused(sentencepiece, tmp_path):
    damaged = tmp_path / "damaged.model"
    damaged.write_bytes(b"not a model")

    with pytest.raises(UsageError, match="damaged.model doesn't fit"):
        made(SENTENCES, source="auto", units_model=str(damaged))


@pytest.mark.parametrize(
    ("units", "fault"), [(5, "more than the alphabet's"), (5000, "5000 units can't")]
)
def test_impossible_numbers_of_units_are_refused(sentencepiece, units, fault):
    with pytest.raises(UsageError, match=fault):
        made(GERMAN, source="auto", units=units)


SCRIPTS = "aäßéœñşğőżđабвеёαςάאبشیकि्नमखทีเ한국어打开かナ'’-,.?!0٣\u200c\u0301 \t\u3000"


@given(
    st.lists(st.text(SCRIPTS, max_size=12), min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_any_text_goes_through_its_own_alphabet_without_loss(texts, case, marks):
    if not any(unicodedata.category(c)[0] in "LNM" for c in "".join(texts)):
        return

    alphabet = made(texts, source="auto", keep_case=case, keep_punctuation=marks)
    for text in texts:
        written = alphabet.normalise(text)

        assert not alphabet.foreign_characters(written)
        assert alphabet.decode(alphabet.encode(written)) == written
        assert alphabet.normalise(written) == written

        lost = (
            set(unicodedata.normalize("NFC", text.lower()))
            - set(written)
            - {" ", "\t", "\u3000"}
        )
        assert (
            all(is_punctuation(c) or c in "'’" for c in lost if not c.isspace()) or case
        )


def fuzzed(generator: random.Random) -> str:
    """Words of one script, or of any code points, with marks, spaces and joiners among
    them.
    """
    first, last = generator.choice(
        [(0x61, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x6FF)]
        + [
            (0x900, 0x97F),
            (0xE01, 0xE5B),
            (0x3041, 0x30FF),
            (0x4E00, 0x4EFF),
            (0xAC00, 0xAD00),
        ]
        + [(0x1100, 0x11FF), (0x20, 0xD7FF), (0x1F300, 0x1F6FF), (0x20, 0x10FFFF)]
    )
    signs = [
        chr(generator.randint(first, last)) for _ in range(generator.randint(1, 12))
    ]
    signs += generator.choices(
        " \u0301\u200d'’-.1\u0660\u3000", k=generator.randint(0, 4)
    )
    generator.shuffle(signs)

    return "".join(c for c in signs if not 0xD800 <= ord(c) <= 0xDFFF)


@pytest.mark.parametrize(
    ("alphabets", "strings"),
    [(4, 150), pytest.param(200, 5000, marks=pytest.mark.long)],
)
def test_fuzzed_strings_go_through_alphabet_and_units_without_loss(
    sentencepiece, alphabets, strings
):
    generator = random.Random(alphabets)
    for number in range(alphabets):
        # Words that occur often, as units need.
        pool = [fuzzed(generator) for _ in range(40)]
        texts = [" ".join(generator.choices(pool, k=3)) for _ in range(strings // 2)]
        texts += [fuzzed(generator) for _ in range(strings // 2)]
        keep = {"keep_case": number % 2 == 0, "keep_punctuation": number % 4 < 2}
        plain = made(texts, source="auto", **keep)
        units = len(plain.characters) + 10
        kind = ("unigram", "bpe", "word")[number % 3]

        cut = made(texts, source="auto", units=units, units_kind=kind, **keep)

        assert cut.characters == plain.characters

        for text in texts:
            written = plain.normalise(text)

            assert cut.normalise(text) == written == plain.normalise(written)
            assert plain.decode(plain.encode(written)) == written
            assert cut.decode(cut.encode(written)) == written


def corpus(folder: Path, texts: dict[str, list[str]]) -> Path:
    """Writes recordings of two seconds, and a table for each split."""
    folder.mkdir(exist_ok=True)
    for split, lines in texts.items():
        rows = ["path\ttext"]
        for number, text in enumerate(lines):
            name = f"{split}{number}.wav"
            soundfile.write(
                folder / name, [0.01 * (n % 7) for n in range(32000)], 16000
            )
            rows.append(f"{name}\t{text}")

        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")

    return folder


def prepare(folder: Path, *flags: str) -> int:
    """Runs `tfasr prepare` in this process and returns its exit code."""
    words = [
        "prepare",
        "--corpus",
        "tsv",
        "--corpus_dir",
        str(folder / "corpus"),
        "--shard_dir",
    ]
    return run_command(parse(["tfasr", *words, str(folder / "shards"), "-q", *flags]))


def test_another_split_is_refused_before_training_has_an_alphabet(tmp_path, capsys):
    corpus(
        tmp_path / "corpus",
        {"train": ["Öl, bitte", "zwei Äpfel"], "validation": ["ÖL!"]},
    )

    assert prepare(tmp_path, "--split", "validation", "--alphabet", "auto") == 2
    assert "prepare for 'train' first" in capsys.readouterr().err


def test_other_splits_take_the_training_splits_alphabet(tmp_path):
    corpus(
        tmp_path / "corpus",
        {"train": ["Öl, bitte", "zwei Äpfel"], "validation": ["ÖL!"]},
    )

    assert prepare(tmp_path, "--split", "train", "--alphabet", "auto") == 0
    assert prepare(tmp_path, "--split", "validation") == 0

    train, validation = (
        open_split(tmp_path / "shards", s) for s in ("train", "validation")
    )

    assert train.index["alphabet"] == validation.index["alphabet"]
    assert list(validation.transcripts()) == ["öl"]


def test_many_foreign_characters_are_refused_before_anything_is_packed(
    tmp_path, capsys
):
    texts = ["hello"] * 3 + ["grüß dich", "schön"]
    corpus(tmp_path / "corpus", {"train": texts})

    assert prepare(tmp_path, "--split", "train") == 1

    message = capsys.readouterr().err

    for part in ("2 of 5", "'ü' in 1", "--alphabet auto", "--mapping"):
        assert part in message
    assert not list((tmp_path / "shards").rglob("*.tfrecord*"))


def test_foreign_characters_are_packed_with_an_alphabet_that_has_them(tmp_path):
    corpus(tmp_path / "corpus", {"train": ["hello"] * 3 + ["grüß dich", "schön"]})

    assert (
        prepare(tmp_path, "--split", "train", "--alphabet", "auto", "--keep_case") == 0
    )
    assert open_split(tmp_path / "shards", "train").index["alphabet"]["keep_case"]
