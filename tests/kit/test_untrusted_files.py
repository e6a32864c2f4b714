"""Files that anyone may have made: pipes, devices, links and bombs end in one sentence, soon."""

import io
import json
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.kit import files
from tfasr.kit.gin import read_gin
from tfasr.ledger.events import is_ledger, read_events
from tfasr.scoring.errors import read_transcripts
from tfasr.studies.records import unpacked_study
from tfasr.training.checkpoint import damage, read_state
from tfasr.tta.energy import read_samples


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def endless(path: Path) -> Path:
    """A link to a device that never ends."""
    path.symlink_to("/dev/zero")
    return path


def huge(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(1 << 41)  # a file with a hole: it takes up nothing

    return path


READERS = {
    "text": lambda path: files.read_text(path, "Choose another."),
    "an object": lambda path: files.read_object(path, "Choose another."),
    "a ledger": read_events,
    "gin": lambda path: read_gin([str(path)]),
    "hypotheses": read_transcripts,
    "a checkpoint": read_state,
    "samples of energy": read_samples,
    "an archive": lambda path: unpacked_study(path, path.parent / "unpacked"),
}


@pytest.mark.parametrize("kind", [pipe, endless, huge], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_never_ends_is_refused_at_once(tmp_path, kind, reader):
    path = kind(tmp_path / "events.jsonl")
    try:
        # Readers may take a pipe for a missing file, as `is_file` does.
        assert READERS[reader](path) == []
    except (UsageError, FileNotFoundError) as error:
        assert path.name in str(error)  # noqa: PT017


def test_a_checkpoint_that_never_ends_is_damaged(tmp_path):
    assert "pipe" in damage(pipe(tmp_path / "step.npz"))
    assert not is_ledger(pipe(tmp_path / "events.jsonl"))


@given(depth=st.integers(1, 200_000), opening=st.sampled_from(["[", '{"a":']))
@settings(max_examples=20, deadline=None)
def test_nested_objects_end_in_a_sentence(tmp_path_factory, depth, opening):
    path = tmp_path_factory.mktemp("nested") / "run.json"
    path.write_text('{"a":' + opening * depth)

    with pytest.raises(UsageError, match=r"run\.json must be a JSON object"):
        files.read_object(path, "Restore it.")


def test_a_larger_object_than_its_reader_needs_is_refused(tmp_path):
    path = tmp_path / "submission.json"
    path.write_text(json.dumps({"a": "b" * 1000}))

    with pytest.raises(
        UsageError, match="has 10.. bytes. At most 100 can be read here"
    ):
        files.read_object(path, "Restore it.", most_bytes=100)


def test_a_strangers_folder_of_plain_files_is_counted(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "events.jsonl").write_text("")

    assert files.check_plain(tmp_path) == 3


def test_a_strangers_folder_with_a_link_is_refused(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "runs" / "a")

    with pytest.raises(UsageError, match="b is a link"):
        files.check_plain(tmp_path)


def test_a_strangers_folder_with_a_pipe_is_refused(tmp_path):
    (tmp_path / "runs").mkdir()
    pipe(tmp_path / "runs" / "b")

    with pytest.raises(UsageError, match="b is a pipe"):
        files.check_plain(tmp_path)


# Writing: temporary files are tfasr's own, and nobody else's are touched.


def test_a_strangers_file_that_is_nearly_all_holes_is_refused_at_once(tmp_path):
    (tmp_path / "small.txt").write_text("a")
    assert files.check_plain(tmp_path) == 1

    huge(tmp_path / "huge.npz")

    with pytest.raises(
        UsageError, match=r"huge\.npz has 2199023255552 bytes, of which"
    ):
        files.check_plain(tmp_path)


def test_a_key_twice_is_refused_at_any_depth(tmp_path):
    path = tmp_path / "twice.json"
    for text in ('{"a": 1, "a": 1}', '{"b": [{"a": 1, "a": 2}]}'):
        path.write_text(text)

        with pytest.raises(UsageError, match=r"twice\.json .*'a' occurs twice"):
            files.read_object(path, "Restore it.")


def test_a_link_in_a_temporary_files_place_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    partial = tmp_path / f"run.json{files.PARTIAL_SUFFIX}"
    partial.symlink_to(precious)

    files.write_whole(tmp_path / "run.json", "new")

    assert precious.read_text() == "mine"
    assert (tmp_path / "run.json").read_text() == "new"
    assert not partial.exists()


def test_a_users_own_partial_files_stay(tmp_path):
    mine = tmp_path / "run.json.partial"
    mine.write_text("half of my thesis")

    files.write_whole(tmp_path / "run.json", "new")

    with pytest.raises(OSError, match="disk"):
        _fails(tmp_path / "run.json")
    assert mine.read_text() == "half of my thesis"
    assert (tmp_path / "run.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir() if path != mine] == ["run.json"]


def _fails(path: Path) -> None:
    with files.whole_file(path):
        raise OSError("the disk is full")


# Archives.


def packed(
    path: Path, *members: tuple[tarfile.TarInfo, bytes], form=tarfile.USTAR_FORMAT
) -> Path:
    """Writes an archive of these members."""
    with tarfile.open(path, "w:xz", format=form, preset=0) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    return path


def named(name: str, **more) -> tarfile.TarInfo:
    """A member of an archive, with some of its attributes changed."""
    member = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(member, key, value)

    return member


def test_a_plain_archive_is_unpacked(tmp_path):
    members = (named("runs/a/events.jsonl"), b"x" * 600), (named("study.json"), b"{}")
    path = packed(tmp_path / "study.tar.xz", *members)

    assert unpacked_study(path, tmp_path / "place") == 602
    assert (
        tmp_path / "place" / "runs" / "a" / "events.jsonl"
    ).read_bytes() == b"x" * 600
    assert (tmp_path / "place" / "study.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("member", "form"),
    [
        (
            named("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
            tarfile.USTAR_FORMAT,
        ),
        (
            named("hard", type=tarfile.LNKTYPE, linkname="study.json"),
            tarfile.USTAR_FORMAT,
        ),
        (named("pipe", type=tarfile.FIFOTYPE), tarfile.USTAR_FORMAT),
        (named("zero", type=tarfile.CHRTYPE), tarfile.USTAR_FORMAT),
        (named("../outside"), tarfile.USTAR_FORMAT),
        (named("/tmp/outside"), tarfile.USTAR_FORMAT),
        (named("."), tarfile.USTAR_FORMAT),
        (named("a" * 5000), tarfile.GNU_FORMAT),
        (named("a" * 5000), tarfile.PAX_FORMAT),
        (named("text", pax_headers={"comment": "x" * 5000}), tarfile.PAX_FORMAT),
    ],
)
def test_members_that_are_no_plain_files_are_refused(tmp_path, member, form):
    path = packed(tmp_path / "study.tar.xz", (member, b""), form=form)

    with pytest.raises(UsageError, match="no regular file inside the study"):
        unpacked_study(path, tmp_path / "place")
    assert not (tmp_path / "outside").exists()


def test_a_member_that_is_there_twice_is_refused(tmp_path):
    twice = (named("a"), b"1"), (named("a"), b"2")
    with pytest.raises(UsageError, match="'a' is there twice"):
        unpacked_study(packed(tmp_path / "twice.tar.xz", *twice), tmp_path / "twice")


def test_a_member_that_is_cut_off_is_refused(tmp_path):
    header = named("a")
    header.size = 5000

    (tmp_path / "cut.tar.xz").write_bytes(lzma.compress(header.tobuf() + b"x" * 100))

    with pytest.raises(UsageError, match="'a' is cut off"):
        unpacked_study(tmp_path / "cut.tar.xz", tmp_path / "cut")


def test_a_bomb_is_noticed_while_it_is_unpacked(tmp_path):
    header = named("a")
    header.size = 1 << 28
    bomb = lzma.compress(header.tobuf() + bytes(1 << 28), preset=0)

    (tmp_path / "bomb.tar.xz").write_bytes(bomb)

    with pytest.raises(UsageError, match="unpacks to more than"):
        unpacked_study(tmp_path / "bomb.tar.xz", tmp_path / "place")


def test_arrays_that_are_compressed_are_not_read(tmp_path):
    path = tmp_path / "step-00000001.npz"
    np.savez_compressed(path, state=np.zeros(1 << 22))

    assert path.stat().st_size < 1 << 17
    with pytest.raises(UsageError, match="must hold its arrays uncompressed"):
        read_state(path)
    assert "must hold its arrays uncompressed" in damage(path)


def test_an_array_that_claims_more_than_the_file_has_is_refused(tmp_path):
    header = io.BytesIO()
    about = {"descr": "<f8", "fortran_order": False, "shape": (1 << 45,)}
    np.lib.format.write_array_header_1_0(header, about)

    with zipfile.ZipFile(tmp_path / "step-00000001.npz", "w") as archive:
        archive.writestr("state.npy", header.getvalue())

    with pytest.raises(UsageError, match="isn't one, or is damaged"):
        read_state(tmp_path / "step-00000001.npz")
