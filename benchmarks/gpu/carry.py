"""Carries TensorFlow to a GPU machine that has no network, in pieces of at most 55 MB.

    python benchmarks/gpu/carry.py download --wheels wheels
    python benchmarks/gpu/carry.py pack --wheels wheels --to pack
    # copy pack/0.zip there, then 1.zip and so on, and after each:
    python3 benchmarks/gpu/carry.py unpack pack/0.zip --to /tmp/tf
    # when all are there:
    python3 benchmarks/gpu/carry.py prove --at /tmp/tf
    eval "$(python3 benchmarks/gpu/carry.py env --at /tmp/tf)"

TensorFlow's libraries hold machine code for five GPU architectures. `pack` keeps what
one of them needs, removes symbols and headers, and compresses the rest. `unpack`,
`prove` and `env` need nothing but Python and this file.

The machine must have cuDNN 9 and the other CUDA libraries, of CUDA 12 or 13. TensorFlow
loads CUDA 12's by name; of CUDA 13's it gets links under these names. If `prove` shows
that cuBLAS 13 doesn't do, use the second plan: carry cuBLAS 12, which ``pack --cublas``
puts into pieces of its own, ``cublas-0.zip`` and so on.
"""

import argparse
import fnmatch
import hashlib
import io
import json
import lzma
import mmap
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

# What the machine lacks, or may have in a version that TensorFlow 2.21 doesn't take.
PACKAGES = (
    "tensorflow==2.21.0",
    "keras==3.15.1",
    "absl-py",
    "astunparse",
    "cffi",
    "flatbuffers",
    "gast",
    "gin-config==0.5.0",
    "google_pasta",
    "h5py==3.14.0",
    "jiwer==4.0.0",
    "ml_dtypes",
    "namex",
    "opt_einsum",
    "optree",
    "orjson==3.13.0",
    "protobuf==7.36.2",
    "pycparser",
    "rapidfuzz",
    "regex",
    "six",
    "soundfile==0.14.0",
    "soxr==1.1.0",
    "termcolor",
    "wrapt",
    "nvidia-cuda-runtime-cu12",
)
# The oldest that TensorFlow 2.21 takes, and the smallest.
CUBLAS = "nvidia-cublas-cu12==12.5.3.2"
# pip matches these exactly, so older ones are named too.
PLATFORMS = ("2_28", "2_27", "2_17", "2014", "1")
# 90 MB that TensorFlow imports, but only TensorBoard's profiler client calls. An empty
# module takes its place.
STUBBED = "tensorflow/python/profiler/internal/_pywrap_profiler_plugin"
LEFT_OUT = (
    "tensorflow/include/*",
    "tensorflow/compiler/tf2xla/ops/_xla_ops.so",  # 20 MB, never loaded here
    "tensorflow/compiler/mlir/stablehlo/stablehlo_extension.so",  # 26 MB, nor this
    STUBBED + ".so",
    "nvidia/*/include/*",
    "nvidia/__init__.py",  # would hide the machine's own packages of NVIDIA
    "nvidia/*/__init__.py",
    "*/RECORD",
    "*.dist-info/*LICENSE*",
    "*.dist-info/licenses/*",
    "*/THIRD_PARTY_NOTICES.txt",
)
# The names by which TensorFlow loads CUDA's libraries.
WANTED = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
    "libnccl.so.2",
    "libcupti.so.12",
)
PIECE_BYTES = 55_000_000
BLOCK_BYTES = 8 << 20
LINKS = "cuda_links"
MANIFEST = "manifest.json"
CONTENTS = "carried"  # a folder with the manifest of each piece that was unpacked

# CUDA's container of code for several architectures.
MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<IHHQ")  # magic, version, header size, size of the entries
ENTRY = struct.Struct("<HHIQIIHHI")
PTX = 1
ELF = 2


class CarryError(Exception):
    """Something that the user can put right; the message says what."""


class Entry(NamedTuple):
    """Code for one architecture in a container; sizes in bytes."""

    kind: int  # `PTX` or `ELF`
    architecture: int  # such as 90
    start: int  # of its code in the file
    size: int


def containers(content: Any) -> Iterator[list[Entry]]:
    """Yields the entries of each container in a library.

    Args:
        content: bytes, or a mapped file.

    Raises:
        CarryError: if the library ends within a container, or an entry within its
            container does.
    """
    position = content.find(MAGIC)
    while position >= 0:
        end = position + len(MAGIC)
        # Code that looks for containers holds the magic number too.
        if len(content) >= position + CONTAINER.size:
            _, version, header, size = CONTAINER.unpack_from(content, position)
            if version == 1 and header == CONTAINER.size:
                end = position + header + size
                if end > len(content):
                    raise CarryError(
                        f"The container at byte {position} ends at byte {end}, but the "
                        f"library has {len(content)} bytes. It is truncated: download the "
                        "wheel again."
                    )

                yield list(container_entries(content, position))

        position = content.find(MAGIC, end)


def container_entries(content: Any, position: int) -> Iterator[Entry]:
    """Yields the entries of the container that begins at a position.

    Raises:
        CarryError: if no container begins there, or an entry exceeds it.
    """
    magic, _, header, size = CONTAINER.unpack_from(content, position)
    if magic != int.from_bytes(MAGIC, "little"):
        raise CarryError(
            f"A container of GPU code must begin with {MAGIC.hex()}. Received: "
            f"{content[position : position + 4].hex()} at byte {position}."
        )

    start = position + header
    end = start + size
    while start < end:
        if start + ENTRY.size > end:
            raise CarryError(
                f"The container at byte {position} has {end - start} bytes too many."
            )

        kind, _, header, size, *_, architecture = ENTRY.unpack_from(content, start)
        code = start + header
        if header < ENTRY.size or code + size > end:
            raise CarryError(
                f"The entry at byte {start} has {header} + {size} bytes, but its container "
                f"ends at byte {end}. Its format isn't known here."
            )

        yield Entry(kind, architecture, code, size)
        start = code + size


def unused(entries: list[Entry], architecture: int) -> list[Entry]:
    """Returns the entries of a container that a GPU never loads.

    It loads machine code of its own architecture; without one, machine code of an older
    one with the same first digit, or else it compiles the newest PTX that it supports.
    """
    machine_code = [
        entry.architecture
        for entry in entries
        if entry.kind == ELF
        and entry.architecture <= architecture
        and entry.architecture // 10 == architecture // 10
    ]
    ptx = [
        entry.architecture
        for entry in entries
        if entry.kind == PTX and entry.architecture <= architecture
    ]
    if machine_code:
        kept = (ELF, max(machine_code))
    elif ptx:
        kept = (PTX, max(ptx))
    else:
        return []

    return [entry for entry in entries if (entry.kind, entry.architecture) != kept]


def cut(library: Path, architecture: int) -> int:
    """Overwrites GPU code that an architecture never loads with zeros, in place.

    Offsets stay as they are; zeros compress to nothing. Returns the bytes of zeros.
    """
    zeroed = 0
    if not library.stat().st_size:
        return zeroed

    with (
        library.open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as content,
    ):
        try:
            found = list(containers(content))
        except CarryError as error:
            raise CarryError(f"{library.name}: {error}") from None

        for entries in found:
            for entry in unused(entries, architecture):
                content[entry.start : entry.start + entry.size] = bytes(entry.size)
                zeroed += entry.size

    return zeroed


def download(wheels: Path, python: str, cublas: bool) -> None:
    """Downloads the wheels for a version of Python, such as "3.12", with pip."""
    platforms = [
        f"--platform=manylinux{'_' if '_' in p else ''}{p}_x86_64" for p in PLATFORMS
    ]
    names = [*PACKAGES, CUBLAS] if cublas else PACKAGES
    command = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--only-binary=:all:", f"--python-version={python}", *platforms]
    if subprocess.run([*command, f"--dest={wheels}", *names]).returncode:
        raise CarryError("pip couldn't download the wheels; its message is above.")


@dataclass
class Pieces:
    """Writes files into archives of limited size.

    Each archive stands alone: it contains blocks of files, each compressed, and a
    manifest of them. A block's name is its file's path and its offset there.
    """

    folder: Path
    prefix: str
    limit: int

    def __post_init__(self) -> None:
        self.sizes: list[int] = []
        self._archive: zipfile.ZipFile | None = None
        self._buffer = io.BytesIO()
        self._blocks: list[dict[str, Any]] = []

    def add(self, path: str, offset: int, size: int, compressed: bytes) -> None:
        """Adds a block of a file whose whole size is ``size``."""
        # 1024 bytes suffice for a block's names in the archive and in the manifest.
        taken = self._buffer.tell() + len(compressed) + 1024 * (len(self._blocks) + 2)
        if self._archive is not None and taken > self.limit:
            self.close()
        if self._archive is None:
            self._buffer = io.BytesIO()
            self._archive = zipfile.ZipFile(self._buffer, "w")
            self._blocks = []

        block = {
            "path": path,
            "offset": offset,
            "size": size,
            "sha256": hashlib.sha256(compressed).hexdigest(),
        }
        self._archive.writestr(f"{path}@{offset}", compressed)
        self._blocks.append(block)

    def close(self) -> None:
        """Writes the archive begun last."""
        if self._archive is None:
            return
        self._archive.writestr(MANIFEST, json.dumps(self._blocks), zipfile.ZIP_DEFLATED)
        self._archive.close()
        self._archive = None
        content = self._buffer.getvalue()
        (self.folder / f"{self.prefix}{len(self.sizes)}.zip").write_bytes(content)
        self.sizes.append(len(content))


def pack(
    wheels: Path,
    to: Path,
    architecture: int = 90,
    limit: int = PIECE_BYTES,
    preset: int = 1,
) -> dict[str, Any]:
    """Packs wheels into pieces; those of cuBLAS apart, as the second plan.

    Args:
        wheels: a folder of wheels.
        to: the folder of pieces; older ones in it are removed.
        architecture: of the GPU, such as 90 for the H100 and H200.
        limit: bytes of a piece.
        preset: of xz, 0 to 9: higher ones compress more and take longer.

    Returns:
        Sizes of the pieces and what was removed, in bytes.
    """
    names = sorted(wheels.glob("*.whl"))
    if not any(name.name.startswith("tensorflow-") for name in names):
        raise CarryError(
            f"{wheels} must contain TensorFlow's wheel. Make it with carry.py download."
        )

    to.mkdir(parents=True, exist_ok=True)
    for old in to.glob("*.zip"):
        old.unlink()

    of_cublas = [name for name in names if name.name.startswith("nvidia_cublas")]
    answer: dict[str, Any] = {"zeroed_bytes": {}, "pieces": {}}
    for prefix, chosen in (
        ("", [name for name in names if name not in of_cublas]),
        ("cublas-", of_cublas),
    ):
        with tempfile.TemporaryDirectory(dir=to) as made:
            folder = Path(made)
            for wheel in chosen:
                _extract(wheel, folder)
            if (folder / STUBBED).parent.is_dir():
                (folder / f"{STUBBED}.py").write_text("")
            for library in sorted(folder.rglob("*.so*")):
                if library.is_relative_to(folder / "tensorflow"):
                    _strip(library)
                if zeroed := cut(library, architecture):
                    answer["zeroed_bytes"][library.name] = zeroed

            pieces = Pieces(to, prefix, limit)
            _write(folder, pieces, preset)
            for number, size in enumerate(pieces.sizes):
                answer["pieces"][f"{prefix}{number}.zip"] = size

    return answer


def _extract(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT):
                archive.extract(name, folder)

    # Wheels may keep modules in a folder of their own, NAME.data/purelib.
    for library in folder.glob("*.data/*lib"):
        shutil.copytree(library, folder, dirs_exist_ok=True)
    for data in folder.glob("*.data"):
        shutil.rmtree(data)


def _strip(library: Path) -> None:
    if shutil.which("strip") is None:
        raise CarryError("Packing needs the command strip. Install binutils.")
    subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)


def _write(folder: Path, pieces: Pieces, preset: int) -> None:
    """Compresses a folder's files, large ones in blocks, on all cores."""
    # The filter for x86 code makes libraries smaller.
    filters = [
        {"id": lzma.FILTER_X86},
        {"id": lzma.FILTER_LZMA2, "preset": preset},
    ]

    def blocks() -> Iterator[tuple[Path, int, int]]:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                size = path.stat().st_size
                for offset in range(0, max(size, 1), BLOCK_BYTES):
                    yield path, offset, size

    def compressed(block: tuple[Path, int, int]) -> bytes:
        path, offset, _ = block
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(BLOCK_BYTES)
        return lzma.compress(content, filters=filters)

    listed = list(blocks())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (path, offset, size), content in zip(
            listed, pool.map(compressed, listed), strict=True
        ):
            pieces.add(str(path.relative_to(folder)), offset, size, content)

    pieces.close()


def unpack(piece: Path, to: Path) -> int:
    """Unpacks a piece on all cores and returns its files' bytes.

    Raises:
        CarryError: if the piece is damaged.
    """
    to.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(piece) as archive:
            blocks = json.loads(archive.read(MANIFEST))
            contents = [archive.read(f"{b['path']}@{b['offset']}") for b in blocks]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise CarryError(f"{piece} is damaged: {error}. Copy it again.") from None

    def write(block: dict[str, Any], content: bytes) -> int:
        if hashlib.sha256(content).hexdigest() != block["sha256"]:
            raise CarryError(
                f"{piece} is damaged: {block['path']} at byte {block['offset']} has "
                "another checksum. Copy it again."
            )

        path = to / block["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened so that blocks of other pieces stay, whichever comes first.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o755)
        raw = lzma.decompress(content)
        with os.fdopen(descriptor, "r+b") as file:
            file.truncate(block["size"])
            file.seek(block["offset"])
            file.write(raw)
        return len(raw)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        written = sum(pool.map(write, blocks, contents))

    (to / CONTENTS).mkdir(exist_ok=True)
    (to / CONTENTS / f"{piece.stem}.json").write_text(json.dumps(blocks))
    return written


def missing_blocks(at: Path) -> list[str]:
    """Returns files of which not all blocks were unpacked, with the missing bytes."""
    whole: dict[str, int] = {}
    there: dict[str, int] = {}
    for manifest in sorted((at / CONTENTS).glob("*.json")):
        for block in json.loads(manifest.read_text()):
            path = block["path"]
            whole[path] = block["size"]
            size = min(BLOCK_BYTES, block["size"] - block["offset"])
            there[path] = there.get(path, 0) + size

    return [
        f"{path} ({size - there[path]} of {size} bytes)"
        for path, size in whole.items()
        if there[path] != size
    ]


def library_folders(at: Path) -> list[Path]:
    """Returns where CUDA's libraries may lie on this machine, the carried ones first."""
    places = [at, *(Path(entry) for entry in sys.path if entry)]
    folders = [
        folder
        for place in places
        if place.is_dir()
        for pattern in ("nvidia/*/lib", "torch/lib")
        for folder in sorted(place.glob(pattern))
    ]
    system = (
        "/usr/local/cuda/lib64",
        "/usr/local/nvidia/lib64",
        "/usr/lib/x86_64-linux-gnu",
    )
    folders += [Path(folder) for folder in system]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def link_libraries(at: Path, only_links: bool = False) -> dict[str, str]:
    """Links CUDA's libraries under the names that TensorFlow loads.

    Args:
        at: what was unpacked.
        only_links: whether a carried cuBLAS is ignored, to try CUDA 13's.

    Returns:
        The library behind each name, "" if there is none.
    """
    links = at / LINKS
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    folders = library_folders(at)
    if only_links:
        folders = [f for f in folders if not f.is_relative_to(at / "nvidia" / "cublas")]

    behind = {}
    for name in WANTED:
        base = name[: name.index(".so")]
        exact = [folder / name for folder in folders if (folder / name).exists()]
        # CUDA 13's has a higher number. Of several the highest is taken.
        others = sorted(
            (path for folder in folders for path in folder.glob(f"{base}.so.*")),
            key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)],
        )
        found = [*exact, *reversed(others)]
        behind[name] = str(found[0]) if found else ""
        if found:
            (links / name).symlink_to(found[0].resolve())

    return behind


def variables(at: Path, only_links: bool = False) -> dict[str, str]:
    """Returns the environment in which Python finds what was unpacked."""
    folders = [at / LINKS, *library_folders(at)]
    if only_links:
        folders = [f for f in folders if not f.is_relative_to(at / "nvidia" / "cublas")]
    # System folders are searched anyway, and later.
    libraries = [str(f) for f in folders if not f.is_relative_to("/usr/lib")]
    earlier = os.environ.get("LD_LIBRARY_PATH", "")
    packages = os.environ.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(at), packages])),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [*libraries, earlier])),
    }


# Prints a line of JSON after each step, so that a crash shows how far it came.
PROOF = r"""
import json, sys, time

def say(**what):
    print(json.dumps(what), flush=True)

began = time.perf_counter()
import numpy as np
import tensorflow as tf
import keras

say(import_s=time.perf_counter() - began, tensorflow=tf.__version__, file=tf.__file__)
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
say(gpus=[tf.config.experimental.get_device_details(gpu).get("device_name") for gpu in gpus])
device = "/GPU:0" if gpus else "/CPU:0"
random = np.random.default_rng(0)
left, right = random.standard_normal((2, 1024, 1024)).astype(np.float32)
for dtype in ("float32", "bfloat16"):
    with tf.device(device):
        product = tf.matmul(tf.cast(left, dtype), tf.cast(right, dtype))
    wrong = np.abs(tf.cast(product, tf.float32).numpy() - left @ right).max()
    say(product=dtype, device=product.device, largest_error=float(wrong))

keras.utils.set_random_seed(1)
features = random.standard_normal((4, 60, 8)).astype(np.float32)
lengths = np.array([60, 50, 40, 30], np.int32)
labels = random.integers(0, 5, (4, 6)).astype(np.int32)
convolution = keras.layers.Conv1D(16, 5, strides=2, activation="relu")
recurrent = keras.layers.LSTM(16, return_sequences=True)
classifier = keras.layers.Dense(6)
optimizer = keras.optimizers.SGD(0.05)

@tf.function(jit_compile=False)
def step():
    with tf.GradientTape() as tape:
        hidden = convolution(features)
        frames = (lengths - 5) // 2 + 1
        mask = tf.sequence_mask(frames, tf.shape(hidden)[1])
        logits = classifier(recurrent(hidden, mask=mask))
        loss = tf.reduce_mean(keras.ops.ctc_loss(labels, logits, [6] * 4, frames, mask_index=5))
    weights = [w for l in (convolution, recurrent, classifier) for w in l.trainable_variables]
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss

step()
losses = [float(step()) for _ in range(3)]
names = {o.type for o in step.get_concrete_function().graph.get_operations()}
say(losses=losses, cudnn="CudnnRNNV3" in names, all_s=time.perf_counter() - began)
"""


def prove(at: Path, on_gpu: bool = True, only_links: bool = False) -> dict[str, Any]:
    """Imports TensorFlow in a new process, multiplies matrices and trains three steps.

    Raises:
        CarryError: if a piece or a library is missing, or the GPU isn't used; the
            message says which, and what to try.
    """
    if not (at / CONTENTS).is_dir():
        raise CarryError(f"{at} has no unpacked pieces. Unpack them there first.")
    if missing := missing_blocks(at):
        raise CarryError(
            f"Pieces are missing: {', '.join(missing)}. Unpack the other pieces, too."
        )

    libraries = link_libraries(at, only_links)
    environment = os.environ | variables(at, only_links)
    environment |= {"TF_CPP_MAX_VLOG_LEVEL": "1", "TF_CPP_MIN_LOG_LEVEL": "0"}
    if not on_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    with tempfile.TemporaryFile() as messages:
        ended = subprocess.run(
            [sys.executable, "-c", PROOF],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=messages,
        )
        messages.seek(0)
        log = messages.read().decode(errors="replace")

    answer: dict[str, Any] = {"libraries": libraries, "products": []}
    for line in ended.stdout.decode().splitlines():
        row = json.loads(line)
        if "product" in row:
            answer["products"].append(row)
        else:
            answer |= row

    answer["not_loaded"] = not_loaded(log)
    used = [row for row in answer["products"] if "GPU" in row["device"]]
    if ended.returncode or (on_gpu and (len(used) < 2 or not answer.get("cudnn"))):
        raise CarryError(_diagnosis(answer, ended.returncode, log))
    return answer


def not_loaded(log: str) -> list[str]:
    """Returns the libraries that TensorFlow's log says it couldn't load."""
    found = re.findall(r"Could not load dynamic library '([^']+)'", log)
    found += re.findall(r"dlerror: (\S+): cannot open", log)
    return sorted(set(found))


def _diagnosis(answer: dict[str, Any], status: int, log: str) -> str:
    shown = json.dumps(answer, indent=1)
    end = "\n".join(line for line in log.splitlines()[-40:])
    if status and "import_s" not in answer:
        remedy = "TensorFlow can't be imported. Carry the package that the end of the log names."
    elif missing := answer["not_loaded"]:
        remedy = f"These libraries weren't loaded: {', '.join(missing)}. Carry them."
    elif not answer.get("gpus"):
        remedy = (
            "TensorFlow sees no GPU. Look for dlopen and dso_loader in the log; an empty name "
            "under 'libraries' is a library to carry."
        )
    else:
        remedy = (
            "The GPU is seen, but a computation failed or ran elsewhere. Try the second plan: "
            "pack with --cublas, unpack the pieces cublas-*.zip too, and prove again. If cuDNN's "
            "step failed, carry nvidia-cudnn-cu12 in the same way."
        )

    return f"{shown}\n{end}\nTensorFlow doesn't use the GPU (status {status}). {remedy}"


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)

    of_download = commands.add_parser("download", help="fetches the wheels with pip")
    of_download.add_argument("--wheels", type=Path, required=True)
    of_download.add_argument("--python", default="3.12", help="the machine's version")
    of_download.add_argument("--cublas", action="store_true", help="cuBLAS 12, too")

    of_pack = commands.add_parser("pack", help="makes the pieces from wheels")
    of_pack.add_argument("--wheels", type=Path, required=True)
    of_pack.add_argument("--to", type=Path, required=True)
    of_pack.add_argument("--architecture", type=int, default=90)

    of_pack.add_argument(
        "--preset", type=int, default=1, help="of xz, 0 to 9: smaller, but slower"
    )

    of_unpack = commands.add_parser("unpack", help="unpacks a piece")
    of_unpack.add_argument("piece", type=Path)
    of_unpack.add_argument("--to", type=Path, required=True)

    for name, text in (
        ("prove", "shows that the GPU is used"),
        ("env", "prints variables for the shell"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--at", type=Path, required=True)
        command.add_argument(
            "--only_links", action="store_true", help="ignore a carried cuBLAS"
        )
        if name == "prove":
            command.add_argument("--cpu", action="store_true", help="without a GPU")

    return parser.parse_args()


def main() -> None:
    flags = _flags()
    began = time.perf_counter()
    try:
        if flags.command == "download":
            download(flags.wheels, flags.python, flags.cublas)
            return

        if flags.command == "env":
            link_libraries(flags.at.resolve(), flags.only_links)
            for name, value in variables(flags.at.resolve(), flags.only_links).items():
                print(f"export {name}={shlex.quote(value)}")
            return

        if flags.command == "pack":
            answer = pack(
                flags.wheels, flags.to, flags.architecture, preset=flags.preset
            )
        elif flags.command == "unpack":
            answer = {"bytes": unpack(flags.piece, flags.to)}
        else:
            answer = prove(flags.at.resolve(), not flags.cpu, flags.only_links)
    except CarryError as error:
        sys.exit(f"carry.py: {error}")

    answer["seconds"] = round(time.perf_counter() - began, 1)
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
