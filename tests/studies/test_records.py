"""``tfasr record``: what it writes over, what it reads from strangers, and a race's seeds."""

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.studies.races import RECORDS
from tests.studies.test_verify import SUBMISSION, stating
from tfasr import cli
from tfasr.errors import UsageError
from tfasr.studies.records import (
    leaked_transcripts,
    load_track,
    record,
    records_table,
    seeds_of,
    statements,
    submissions,
    write_table,
)
from tfasr.verifying.run import Check, unchecked

TRACK = RECORDS / "tones" / "track.gin"
CHALLENGER = RECORDS / "tones" / "challenger.gin"


@pytest.fixture
def records(tmp_path):
    """A folder of records with the tones' track and one accepted submission."""
    folder = tmp_path / "records"
    shutil.copytree(RECORDS / "tones", folder / "tones")
    shutil.copytree(SUBMISSION, folder / "tones" / "001-faster")
    return folder


def tfasr(*words) -> int:
    return cli.run(cli.parse(["tfasr", *map(str, words)]))


# The user's files.


@pytest.mark.parametrize("name", ["race.gin", "reigning.gin", "study", "submission"])
def test_a_race_does_not_write_over_files_of_others(tmp_path, name):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("my notes")
    with pytest.raises(
        UsageError, match=rf"which holds {name} and no race\.gin of tfasr record"
    ):
        record("tones", [str(CHALLENGER)], run_dir=folder, records=RECORDS)
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "my notes"


@pytest.mark.parametrize("resume", [False, True])
def test_a_race_that_was_begun_is_not_changed(tmp_path, resume):
    folder = tmp_path / "race"
    (folder / "study").mkdir(parents=True)
    (folder / "race.gin").write_text("# Written by tfasr record. Track: tones\n")
    (folder / "study" / "starts.jsonl").write_text("")
    with pytest.raises(
        UsageError, match="a changed recipe, track or code makes another race"
    ):
        record(
            "tones", [str(CHALLENGER)], run_dir=folder, records=RECORDS, resume=resume
        )
    assert (
        folder / "race.gin"
    ).read_text() == "# Written by tfasr record. Track: tones\n"
    assert not (folder / "reigning.gin").exists()


def test_a_table_replaces_only_a_table(records):
    page = records / "README.md"
    page.write_text("# My records\n")
    with pytest.raises(
        UsageError, match=r"README\.md and no page that tfasr record --table wrote"
    ):
        write_table(records)
    assert page.read_text() == "# My records\n"
    page.unlink()
    write_table(records)
    first = page.read_text()
    write_table(records)
    assert page.read_text() == first == records_table(records)


# What strangers write.


@pytest.mark.parametrize("line", ["import antigravity", "include '../secret.gin'"])
def test_a_track_of_a_stranger_runs_and_reads_nothing(records, tmp_path, line):
    (records / "secret.gin").write_text("TrackConfig.title = 'secret'\n")
    path = records / "tones" / "track.gin"
    path.write_text(f"{line}\n{path.read_text()}")
    for read in (lambda: load_track("tones", records), lambda: records_table(records)):
        with pytest.raises(UsageError, match="must hold only bindings"):
            read()


@pytest.mark.parametrize("place", ["/etc/passwd", "../../secret.gin"])
def test_a_baseline_lies_in_the_tracks_folder_or_among_presets(records, place):
    path = records / "tones" / "track.gin"
    path.write_text(path.read_text().replace("'baseline.gin'", repr(place)))
    with pytest.raises(
        UsageError, match="must name presets, or files in the track's folder"
    ):
        load_track("tones", records)


BAD_VALUES = [None, 5, -1.5, float("nan"), "", "x", [], {}, [1, 2], True, "é" * 5000]


@pytest.mark.parametrize("bad", BAD_VALUES, ids=repr)
@pytest.mark.parametrize(
    "name",
    ["verdict", "ratio", "interval", "runs", "statements", "study", "files", "against"],
)
def test_a_table_names_a_submission_that_states_nonsense(records, name, bad):
    stated = json.loads((SUBMISSION / "submission.json").read_text())
    kinds = {
        "ratio": (type(None), int, float),
        "interval": (type(None), list),
        "runs": int,
        "against": str,
    }
    kinds |= {"statements": list, "files": dict}
    folder = records / "tones" / "001-faster"
    stating(folder, **{name: bad})
    try:
        table = records_table(records)
    except UsageError as error:
        assert "001-faster" in str(error)  # noqa: PT017
        return

    # Whatever is accepted is of the right kind, and leaves the table's form alone.
    assert isinstance(bad, kinds[name])
    row = next(line for line in table.splitlines() if "001-faster" in line)
    assert row.count(" | ") == 4
    assert stated["study"][:16] in row


def test_the_table_names_the_confidence_of_its_intervals(records):
    """They are those of the decisions, at the track's level: the table once called 99 %
    95 %.
    """
    assert "| ratio, 99 % interval |" in records_table(records)
    track = records / "tones" / "track.gin"
    track.write_text(f"{track.read_text()}\nTrackConfig.level = 0.05\n")
    assert "| ratio, 95 % interval |" in records_table(records)


def test_text_of_strangers_stays_text(records):
    folder = records / "tones" / "001-faster"
    strange = folder.rename(folder.with_name("<img src=x> [a](b) | *c*"))
    path = records / "tones" / "track.gin"
    title = "<script>alert(1)</script> | `x`"
    path.write_text(path.read_text().replace("Tones to CER 55 %", title))
    table = records_table(records)
    assert "<" not in table.replace("\\<", "")
    row = next(line for line in table.splitlines() if "img" in line)
    assert row.replace("\\|", "").count("|") == 6
    assert (
        "](tones/%3Cimg%20src%3Dx%3E%20%5Ba%5D%28b%29%20%7C%20%2Ac%2A/card.md)" in row
    )
    assert submissions(records, "tones")[0]["folder"] == strange.name


@given(text=st.text())
def test_a_check_is_one_printable_line(text):
    check = Check(text, None, text)
    for line in (check.line, unchecked([check], [text])):
        assert len(line.splitlines()) <= 1
        assert "\x1b" not in line
        assert "\u202e" not in line


def test_a_forged_line_of_a_submission_is_shown_as_text(records, capsys):
    folder = records / "tones" / "001-faster"
    stating(folder, verdict="\x1b[2J\nok          verdict: record")
    assert tfasr("verify", folder, "--records", records) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert not any(
        line.startswith("ok          verdict") for line in shown.splitlines()
    )


# A race's seeds and its code.


def test_seeds_follow_from_everything_that_is_sealed():
    sealed = {
        "track": "tones",
        "reigning": ["a = 1"],
        "own": ["b = 2"],
        "code": "0" * 64,
        "plugged": ["1" * 64],
    }
    seeds = seeds_of(**sealed)
    assert len(set(seeds)) == 12
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds_of(**sealed) == seeds
    others = {
        "track": "t",
        "reigning": [],
        "own": ["b = 3"],
        "code": "1" * 64,
        "plugged": [],
    }
    drawn = [seeds_of(**{**sealed, name: value}) for name, value in others.items()]
    assert len({seeds, *drawn}) == 6


def test_both_sides_have_one_budget():
    bindings = load_track("tones", RECORDS).bindings
    texts = statements([str(CHALLENGER)], bindings)
    for name, value in (
        ("epochs", "120"),
        ("stop_after_hours", "0.0"),
        ("give_up_after_hours", "0.0"),
        ("evaluation_utterances", "0"),
    ):
        assert f"TrainingConfig.{name} = {value}" in texts[-9:]


SPOKEN = st.sampled_from(["alpha", "bravo", "charlie", "delta", "echo", "foxtrot"])
WORDS = st.lists(SPOKEN, min_size=3)


@given(spoken=WORDS, order=st.randoms(use_true_random=False), reverse=st.booleans())
def test_a_transcript_is_found_in_any_order(spoken, order, reverse):
    shuffled = list(spoken)
    order.shuffle(shuffled)
    if reverse:
        shuffled = [word[::-1] for word in shuffled]
    code = ["def", "step", *shuffled, "return"]
    assert leaked_transcripts([" ".join(spoken)], code) == {" ".join(spoken)}
    assert not leaked_transcripts(
        [" ".join(spoken)], ["def", *shuffled[:2], "step", *shuffled[2:]]
    )
