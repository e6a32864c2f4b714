import pytest

from tfasr.corpora.corpus import available_splits, read_split
from tfasr.corpora.speech_commands import official_split
from tfasr.errors import UsageError


def name(speaker: str, take: int = 0) -> str:
    return f"{speaker}_nohash_{take}"


def ids(folder, split) -> list[str]:
    return [u.id for u in read_split("speech_commands", folder, split).utterances]


@pytest.fixture
def tree(tmp_path, write_audio):
    speakers = speakers_by_split()
    for word in ("up", "down"):
        for speaker in speakers.values():
            write_audio(tmp_path / word / f"{name(speaker)}.wav", 0.1)

    write_audio(tmp_path / "_background_noise_" / "tap.wav", 0.1)
    (tmp_path / "up" / "notes.txt").write_text("no audio")
    return tmp_path


def speakers_by_split() -> dict[str, str]:
    """Returns, for each split, a speaker whom the rule puts there."""
    found: dict[str, str] = {}
    for number in range(1000):
        found.setdefault(official_split(f"{number:08x}_nohash_0.wav"), f"{number:08x}")
    return found


def test_the_official_rule_agrees_with_the_real_lists(shared_data):
    """What README.md says: listed files are "validation" by the rule, or a few "test"."""
    root = shared_data / "speech_commands"
    by_rule = {}
    for split in ("train", "validation", "test"):
        utterances = read_split("speech_commands", root, split).utterances
        by_rule[split] = [official_split(u.audio_path.name) for u in utterances]

    assert [len(by_rule[s]) for s in ("train", "validation", "test")] == [322, 62, 77]
    assert set(by_rule["train"]) == {"train"}
    assert set(by_rule["validation"]) == {"validation"}
    assert set(by_rule["test"]) in ({"validation"}, {"validation", "test"})


def test_a_speaker_is_in_one_split_whatever_the_take_and_folder():
    for speaker in ("0ab3b47d", "7a49163e", "anyone"):
        splits = {
            official_split(f"{folder}{name(speaker, n)}.wav")
            for n in range(4)
            for folder in ("", "up/", "a/b/")
        }
        assert len(splits) == 1


def test_without_lists_the_rule_splits(tree):
    speakers = speakers_by_split()
    assert available_splits("speech_commands", tree) == ["train", "validation", "test"]
    for split, speaker in speakers.items():
        found = read_split("speech_commands", tree, split)
        assert [u.id for u in found.utterances] == [
            f"down/{name(speaker)}",
            f"up/{name(speaker)}",
        ]
        assert [u.text for u in found.utterances] == ["down", "up"]
        assert [u.speaker for u in found.utterances] == [speaker] * 2
        assert found.rejections == []


def test_lists_override_the_rule(tree, write_lines):
    train, validation, test = (
        speakers_by_split()[s] for s in ("train", "validation", "test")
    )
    write_lines(tree / "validation_list.txt", f"up/{name(train)}.wav")
    write_lines(tree / "testing_list.txt", f"up/{name(validation)}.wav")
    assert ids(tree, "validation") == [f"up/{name(train)}"]
    assert ids(tree, "test") == [f"up/{name(validation)}"]
    left = [f"down/{name(s)}" for s in (train, validation, test)] + [f"up/{name(test)}"]
    assert ids(tree, "train") == sorted(left)


def test_a_missing_list_is_derived_for_what_the_other_does_not_name(tree, write_lines):
    train, validation, test = (
        speakers_by_split()[s] for s in ("train", "validation", "test")
    )
    write_lines(tree / "validation_list.txt", f"up/{name(test)}.wav")
    assert ids(tree, "validation") == [f"up/{name(test)}"]
    assert ids(tree, "test") == [f"down/{name(test)}"]
    rest = [f"{word}/{name(s)}" for word in ("down", "up") for s in (train, validation)]
    assert ids(tree, "train") == sorted(rest)


def test_everything_unusable_is_listed(tree, write_audio, write_lines):
    train = speakers_by_split()["train"]
    write_lines(
        tree / "testing_list.txt",
        f"up/{name(train)}.wav",
        f"up/{name(train)}.wav",
        f"up/{name(train, 9)}.wav",
        "nonsense",
    )
    write_audio(tree / "up" / f"{name(train)}.flac")
    (tree / "up" / f"{name(train)}.wav").write_bytes(b"broken")
    split = read_split("speech_commands", tree, "test")
    assert [(r.id, r.reason) for r in split.rejections] == [
        ("testing_list.txt:4", "malformed line"),
        (f"up/{name(train)}", "duplicate id"),
        (f"up/{name(train)}", "duplicate id"),
        (f"up/{name(train, 9)}", "transcript without audio"),
    ]
    assert [u.audio_path.suffix for u in split.utterances] == [".flac"]


def test_one_recording_in_both_lists_is_an_error(tree, write_lines):
    line = f"up/{name('0' * 8)}.wav"
    write_lines(tree / "validation_list.txt", line)
    write_lines(tree / "testing_list.txt", line)
    with pytest.raises(
        UsageError, match="in only one of validation_list.txt and testing_list.txt"
    ):
        read_split("speech_commands", tree, "train")


def test_folders_of_another_corpus_are_refused(tmp_path, shared_data, write_audio):
    write_audio(tmp_path / "recordings" / "0_george_0.wav")
    for wrong in (tmp_path, shared_data / "an4", shared_data / "fsdd", shared_data):
        with pytest.raises(UsageError, match="one folder per word.*Found there: "):
            read_split("speech_commands", wrong, "train")
