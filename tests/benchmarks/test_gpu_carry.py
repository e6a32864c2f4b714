"""Packs of GPU libraries: what is cut, what comes out again, and what is refused."""

import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from random import Random

import pytest
from gpu import carry
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(carry.__file__)


def container(*entries, version=1):
    """Returns a container of entries ``(kind, architecture, code)``."""
    content = b"".join(
        carry.ENTRY.pack(kind, 257, 64, len(code), 0, 0, 7, 1, architecture)
        + bytes(64 - carry.ENTRY.size)
        + code
        for kind, architecture, code in entries
    )
    return carry.MAGIC + struct.pack("<HHQ", version, 16, len(content)) + content


def cut(folder, content, architecture=90):
    """A library of this content after all other architectures were cut out."""
    library = folder / "lib.so"
    library.write_bytes(content)
    carry.cut(library, architecture)

    return library.read_bytes()


def test_only_the_code_that_the_gpu_loads_is_left(tmp_path):
    full = container(
        (carry.ELF, 80, b"eighty!!"),
        (carry.ELF, 90, b"ninety!!"),
        (carry.PTX, 90, b"compiled"),
    )
    without_code = container((carry.ELF, 80, b"eighty!!"), (carry.PTX, 90, b"compiled"))
    library = b"text" + full + b"between" + without_code + b"end"

    left = cut(tmp_path, library)

    assert len(left) == len(library)
    for word, times in ((b"eighty!!", 0), (b"ninety!!", 1), (b"compiled", 1)):
        assert left.count(word) == times
    assert left.startswith(b"text") and left.endswith(b"end") and b"between" in left


@pytest.mark.parametrize(
    ("architecture", "kept"), [(89, {b"80"}), (80, {b"80"}), (75, {b"75"}), (60, set())]
)
def test_a_gpu_takes_older_code_of_its_generation_or_else_compiles(
    tmp_path, architecture, kept
):
    entries = [
        (carry.ELF, 80, b"80"),
        (carry.ELF, 90, b"90"),
        (carry.PTX, 70, b"70"),
        (carry.PTX, 75, b"75"),
    ]
    left = cut(tmp_path, container(*entries), architecture)
    # A container with nothing for the GPU stays as it is.
    expected = kept or {code for *_, code in entries}

    assert {code for *_, code in entries if code in left[16:]} == expected


_entries = st.lists(
    st.tuples(
        st.sampled_from([carry.PTX, carry.ELF]),
        st.sampled_from([60, 70, 80, 89, 90, 100]),
        st.binary(max_size=40),
    ),
    max_size=5,
)


@given(st.lists(_entries, max_size=4), st.binary(max_size=9))
def test_every_entry_of_every_container_is_found(made, between):
    between = between.replace(carry.MAGIC[:1], b"x")
    content = b"".join(between + container(*entries) for entries in made)

    result = [
        [
            (entry.kind, entry.architecture, content[entry.start :][: entry.size])
            for entry in entries
        ]
        for entries in carry.containers(content)
    ]

    assert result == made


def test_code_that_looks_for_containers_is_no_container(tmp_path):
    compared = b"cmp" + carry.MAGIC + b"\x74\x7e\xb8\x19" + bytes(40)

    assert list(carry.containers(compared)) == []
    assert list(carry.containers(b"at the end" + carry.MAGIC)) == []
    assert cut(tmp_path, compared) == compared


def test_a_wrong_magic_number_is_named():
    content = b"\x7fELF" + container((carry.ELF, 90, b"code"))[4:]

    with pytest.raises(carry.CarryError, match="50ed55ba.*7f454c46 at byte 0"):
        list(carry.container_entries(content, 0))


def test_a_truncated_library_is_refused(tmp_path):
    whole = container((carry.ELF, 80, b"eighty!!"), (carry.ELF, 90, b"ninety!!"))
    with pytest.raises(carry.CarryError, match=r"lib\.so: .*truncated"):
        cut(tmp_path, whole[:-5])


def test_an_entry_longer_than_its_library_is_refused(tmp_path):
    whole = container((carry.ELF, 80, b"eighty!!"), (carry.ELF, 90, b"ninety!!"))

    longer = bytearray(whole)
    longer[16 + 8 : 16 + 16] = struct.pack("<Q", 10**6)  # the first entry's size

    with pytest.raises(carry.CarryError, match=r"lib\.so: The entry at byte 16"):
        cut(tmp_path, bytes(longer))


@pytest.fixture
def wheels(tmp_path):
    """A TensorFlow of two small files, and cuBLAS."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    code = container((carry.ELF, 80, b"eighty!!"), (carry.ELF, 90, b"ninety!!"))
    random = Random(0).randbytes(60_000)
    contents = {
        "tensorflow-2.21.0-cp312-cp312-any.whl": {
            "tensorflow/__init__.py": b"one = 1\n",
            "tensorflow/empty.py": b"",
            "tensorflow/data.bin": random,
            "tensorflow/include/a.h": b"no",
            "tensorflow-2.21.0.data/purelib/beside/here.py": b"two = 2\n",
        },
        "nvidia_cublas_cu12-12.5-any.whl": {
            "nvidia/__init__.py": b"no",
            "nvidia/cublas/lib/libcublas.so.12": code,
        },
    }

    for name, files in contents.items():
        with zipfile.ZipFile(folder / name, "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)

    return folder


def test_pieces_in_any_order_give_the_files_back(wheels, tmp_path, monkeypatch):
    monkeypatch.setattr(carry, "BLOCK_BYTES", 9_000)
    to = tmp_path / "pack"

    answer = carry.pack(wheels, to, limit=30_000)
    pieces = sorted(to.iterdir())

    assert len([piece for piece in pieces if piece.name[0].isdigit()]) > 1
    assert {piece.name: piece.stat().st_size for piece in pieces} == answer["pieces"]
    assert max(answer["pieces"].values()) <= 30_000
    assert answer["zeroed_bytes"] == {"libcublas.so.12": 8}

    site = tmp_path / "site"
    of_tensorflow = [piece for piece in pieces if "cublas" not in piece.name]
    for piece in reversed(of_tensorflow):
        carry.unpack(piece, site)
        is_last = piece == of_tensorflow[0]

        assert bool(carry.missing_blocks(site)) != is_last

    with zipfile.ZipFile(next(wheels.glob("tensorflow*"))) as archive:
        data = archive.read("tensorflow/data.bin")

    assert (site / "tensorflow/data.bin").read_bytes() == data
    assert (site / "tensorflow/empty.py").read_bytes() == b""
    assert (site / "beside/here.py").read_bytes() == b"two = 2\n"
    assert not (site / "tensorflow/include").exists()
    assert not (site / "nvidia").exists()

    carry.unpack(to / "cublas-0.zip", site)
    assert not (site / "nvidia/__init__.py").exists()

    library = (site / "nvidia/cublas/lib/libcublas.so.12").read_bytes()
    assert b"ninety!!" in library and b"eighty!!" not in library


def test_a_piece_that_was_cut_short_is_refused(wheels, tmp_path):
    carry.pack(wheels, tmp_path / "pack")
    piece = tmp_path / "pack" / "0.zip"

    content = bytearray(piece.read_bytes())

    with pytest.raises(carry.CarryError, match="damaged"):
        piece.write_bytes(content[:-50])
        carry.unpack(piece, tmp_path / "site")


def test_a_piece_with_a_changed_byte_is_refused(wheels, tmp_path):
    carry.pack(wheels, tmp_path / "pack")
    piece = tmp_path / "pack" / "0.zip"

    content = bytearray(piece.read_bytes())
    content[len(content) // 3] ^= 255
    piece.write_bytes(content)

    with pytest.raises(carry.CarryError, match="damaged"):
        carry.unpack(piece, tmp_path / "site")


def test_libraries_of_cuda_13_get_the_names_of_cuda_12(wheels, tmp_path, monkeypatch):
    there = tmp_path / "site-packages"
    libraries = there / "nvidia/cu13/lib"
    libraries.mkdir(parents=True)

    for name in ("libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9"):
        (libraries / name).write_bytes(b"13")

    monkeypatch.setattr(sys, "path", [str(there)])
    at = tmp_path / "at"
    carry.pack(wheels, tmp_path / "pack")
    carry.unpack(tmp_path / "pack/0.zip", at)

    behind = carry.link_libraries(at)

    assert behind["libcublas.so.12"] == str(libraries / "libcublas.so.13")
    assert (at / carry.LINKS / "libcublas.so.12").read_bytes() == b"13"
    assert behind["libcudnn.so.9"] == str(libraries / "libcudnn.so.9")

    variables = carry.variables(at)

    assert variables["LD_LIBRARY_PATH"].startswith(f"{at / carry.LINKS}:")
    assert variables["PYTHONPATH"].startswith(str(at))

    # The second plan: cuBLAS 12 was carried, too.
    carry.unpack(tmp_path / "pack/cublas-0.zip", at)
    carried = at / "nvidia/cublas/lib/libcublas.so.12"

    assert carry.link_libraries(at)["libcublas.so.12"] == str(carried)
    assert carry.link_libraries(at, True)["libcublas.so.12"] != str(carried)


def test_a_missing_library_is_read_from_tensorflows_log():
    log = (
        "I dso_loader.cc:59] Successfully opened dynamic library libcudart.so.12\n"
        "W dso_loader.cc:55] Could not load dynamic library 'libcufft.so.11'; dlerror: "
        "libcufft.so.11: cannot open shared object file: No such file or directory\n"
    )

    assert carry.not_loaded(log) == ["libcufft.so.11"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["pack", "--wheels", "{}", "--to", "{}/to"],
            "must contain TensorFlow's wheel",
        ),
        (["unpack", "{}/0.zip", "--to", "{}/to"], "0.zip is damaged"),
        (["prove", "--at", "{}"], "no unpacked pieces"),
    ],
)
def test_wrong_folders_end_with_one_line(tmp_path, words, message):
    command = [word.replace("{}", str(tmp_path)) for word in words]
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), *command], capture_output=True, text=True
    )

    assert ended.returncode == 1
    assert ended.stderr.startswith("carry.py: ")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_missing_piece_is_named_before_tensorflow_starts(
    wheels, tmp_path, monkeypatch
):
    monkeypatch.setattr(carry, "BLOCK_BYTES", 9_000)
    carry.pack(wheels, tmp_path / "pack", limit=30_000)
    at = tmp_path / "at"
    carry.unpack(tmp_path / "pack/0.zip", at)
    (manifest,) = (at / carry.CONTENTS).glob("*.json")

    paths = {block["path"] for block in json.loads(manifest.read_text())}

    with pytest.raises(carry.CarryError, match=r"data\.bin \(\d+ of 60000 bytes\)"):
        carry.prove(at)
    assert "tensorflow/data.bin" in paths
