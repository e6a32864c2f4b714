"""Builds the wheel of tfasr-measure and, for every CPython that is installed, a
manylinux wheel of tfasr, and tries each of them.

    python release/wheels.py --out dist [--twice] [--aarch64]

Each wheel is compiled from the commit that is checked out, by the tools of
build-requirements.txt, whose hashes are checked. The same commit gives the same bytes
in any folder: ``--twice`` builds every wheel in two folders and compares them.
auditwheel includes shared libraries that a system may lack and names the wheel by the
oldest glibc it runs on.

Two packages that own one file damage each other: pip overwrites it without a word, and
uninstalling one package takes it from the other. So the wheel of tfasr leaves out what
that of tfasr-measure contains, and requires it in the same version. (Installed from a
clone, tfasr is whole, since pip would look for that requirement in vain.)

tfasr-measure alone must then record and report a training loop in a new environment,
and in another one, with tfasr, both compiled parts must load. SHA256SUMS lists what was
built.

``--aarch64`` cross-compiles for 64-bit ARM with Debian's g++-aarch64-linux-gnu. Those
wheels are checked for their contents; release/README.md says how to run them.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = Path(__file__).with_name("build-requirements.txt")
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
LOAD = """
import sys, tfasr
from tfasr.decoding import _word_beam_core
from tfasr.layers import _recurrent_core
print(f"Python {sys.version.split()[0]}: tfasr {tfasr.__version__} and both compiled parts load.")
"""
LOOP = """
import tfasr
batches = range(4)
with tfasr.Recorder("run", targets=["wer=0.2"], target_window=1) as run:
    for recognised in ("one too", "one two"):
        run.epoch()
        for batch in batches:
            with run.step(utterances=8) as step:
                step.loss = 1.5
        with run.evaluation() as evaluation:
            evaluation.score(["one two"], [recognised])
"""
COMPILED = ("_word_beam_core", "_recurrent_core")
# The largest environment with tfasr-measure alone.
MOST_BYTES = 300e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("dist"), help="default: ./%(default)s"
    )
    parser.add_argument(
        "--twice", action="store_true", help="build twice and compare the bytes"
    )
    parser.add_argument(
        "--aarch64", action="store_true", help="cross-compile for 64-bit ARM"
    )
    parser.add_argument(
        "--python",
        nargs="+",
        help=f"interpreters to build for; default: CPython {', '.join(VERSIONS)}, where installed",
    )
    flags = parser.parse_args()
    interpreters = flags.python or installed_interpreters()
    if not interpreters:
        sys.exit(
            f"No CPython {', '.join(VERSIONS)} is installed: name an interpreter by --python."
        )
    flags.out.mkdir(parents=True, exist_ok=True)
    wheels = []
    for python in interpreters:
        with tempfile.TemporaryDirectory() as folder:
            tools = Path(folder, "tools")
            run(python, "-m", "venv", tools)
            pip = [tools / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
            run(*pip, "install", "-q", "--require-hashes", "-r", REQUIREMENTS)
            built = build(tools, Path(folder, "first"), flags.aarch64)
            if flags.twice:
                second = Path(folder, "the", "second", "time")
                check_equal(built, build(tools, second, flags.aarch64))

            measure, wheel = (Path(shutil.copy2(each, flags.out)) for each in built)
            note = "(equal in two builds)" if flags.twice else ""
            print(wheel, note, flush=True)
            check_contents(wheel)
            if not flags.aarch64:
                check_measure(python, measure)
                check_installed(python, measure, wheel)

            wheels += [measure, wheel]

    sums = sorted(
        f"{hashlib.sha256(w.read_bytes()).hexdigest()}  {w.name}\n"
        for w in dict.fromkeys(wheels)
    )
    (flags.out / "SHA256SUMS").write_text("".join(sums))


def check_equal(built: Sequence[Path], again: Sequence[Path]) -> None:
    """Ends the program unless two builds gave the same bytes."""
    for one, other in zip(built, again, strict=True):
        if one.read_bytes() != other.read_bytes():
            where = ", ".join(differing(one, other)) or "order or dates of its files"
            sys.exit(f"{one.name} differs between two builds of one commit: {where}.")


def differing(*wheels: Path) -> list[str]:
    """Returns the names of the files that differ between two wheels, or that one of
    them lacks.
    """
    first, second = (
        {i.filename: i.CRC for i in zipfile.ZipFile(w).infolist()} for w in wheels
    )
    return sorted(
        n for n in first.keys() | second.keys() if first.get(n) != second.get(n)
    )


def installed_interpreters() -> list[str]:
    """Returns an interpreter of each version, from the PATH or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    interpreters = []
    for version in VERSIONS:
        name = f"python{version}"
        candidates = [
            shutil.which(name),
            *map(str, sorted(pyenv.glob(f"{version}.*/bin/{name}"))),
        ]
        # pyenv puts a name on the PATH even for versions that are not installed.
        works = (
            python for python in filter(None, candidates) if _version(python) == version
        )
        interpreters += [python] if (python := next(works, None)) else []
        if python is None:
            print(f"Skipping CPython {version}, which is not installed.")

    return interpreters


def _version(python: str) -> str | None:
    command = [
        python,
        "-c",
        "import sys; print('.'.join(map(str, sys.version_info[:2])))",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def build(tools: Path, folder: Path, aarch64: bool) -> tuple[Path, Path]:
    """Builds the commit that is checked out in a folder.

    Returns the wheels of tfasr-measure, and of tfasr without what that one contains.
    """
    source = folder / "tfasr"
    source.mkdir(parents=True)
    archive = folder / "sources.tar"
    run("git", "-C", ROOT, "archive", "--output", archive, "HEAD")
    run("tar", "-xf", archive, "-C", source)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(tools / "bin"), os.environ["PATH"]]),
        "SOURCE_DATE_EPOCH": run(
            "git", "-C", ROOT, "log", "-1", "--format=%ct"
        ).strip(),
        "PYTHONHASHSEED": "0",
        # The folder's name would otherwise be in the debug information. Old versions of
        # setuptools compile C++ with CFLAGS, new ones with CXXFLAGS.
        **dict.fromkeys(("CFLAGS", "CXXFLAGS"), f"-g0 -ffile-prefix-map={source}=."),
        "LDFLAGS": "-Wl,--build-id=none",
    }
    machine = "aarch64" if aarch64 else os.uname().machine
    if aarch64:
        abi = (
            f"cpython-{run(tools / 'bin/python', '-c', _ABI).strip()}-aarch64-linux-gnu"
        )
        environment |= {
            "CC": "aarch64-linux-gnu-gcc",
            "CXX": "aarch64-linux-gnu-g++",
            "LDSHARED": "aarch64-linux-gnu-gcc -shared",
            "_PYTHON_HOST_PLATFORM": "linux-aarch64",
            "SETUPTOOLS_EXT_SUFFIX": f".{abi}.so",
        }

    python = tools / "bin" / "python"
    raw = folder / "raw"
    out = folder / "wheels"
    wheel = [python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run(*wheel, "--wheel-dir", raw, source, env=environment)
    repair = [python, "-m", "auditwheel", "repair", "--wheel-dir", out]
    if aarch64:  # auditwheel finds the libraries of the machine it runs on, not ARM's
        repair = [python, "-m", "wheel", "tags", "--remove", "--platform-tag"]
        (path,) = raw.glob("*.whl")
        run(*repair, f"manylinux_2_{_glibc(path)}_{machine}", path, env=environment)
        out = raw
    else:
        run(*repair, next(raw.glob("*.whl")), env=environment)

    run(*wheel, "--wheel-dir", folder, source / "measure", env=environment)
    (repaired,) = out.glob("*.whl")
    (measure,) = folder.glob("*.whl")
    return measure, rest(python, repaired, measure, folder / "rest", environment)


def rest(
    python: Path | str,
    whole: Path,
    measure: Path,
    folder: Path,
    environment: Mapping[str, str],
) -> Path:
    """Returns a wheel of tfasr without the files of tfasr-measure, which it requires."""
    tool = [python, "-m", "wheel"]
    run(*tool, "unpack", "--dest", folder / "unpacked", whole)
    (unpacked,) = folder.glob("unpacked/*")
    for name in zipfile.ZipFile(measure).namelist():
        if ".dist-info/" not in name:
            (unpacked / name).unlink()

    (about,) = unpacked.glob("*.dist-info")
    # The command tfasr is a file too, in the environment's folder bin.
    (about / "entry_points.txt").unlink()
    version = measure.name.split("-")[1]
    headers, _, text = (about / "METADATA").read_text().partition("\n\n")
    headers += f"\nRequires-Dist: tfasr-measure=={version}"
    (about / "METADATA").write_text(f"{headers}\n\n{text}")

    run(*tool, "pack", "--dest-dir", folder, unpacked, env=environment)
    (packed,) = folder.glob("*.whl")
    return packed


_ABI = "import sys; print('%d%d' % sys.version_info[:2])"


def _glibc(wheel: Path) -> int:
    """Returns the newest minor version of glibc 2 whose symbols a wheel's compiled
    parts use.
    """
    versions = [17]
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                symbols = run("objdump", "-T", archive.extract(name, folder))
                versions += [
                    int(part.split(")")[0].split(".")[1])
                    for part in symbols.split("(GLIBC_2")[1:]
                ]

    return max(versions)


def check_contents(wheel: Path) -> None:
    """Ends the program if a wheel lacks a compiled part."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [part for part in COMPILED if not any(part in name for name in names)]
    if missing:
        sys.exit(f"{wheel} lacks {', '.join(missing)}.")


def check_measure(python: str, measure: Path) -> None:
    """Installs tfasr-measure into a new environment, where it records and reports a loop."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", folder)
        interpreter = Path(folder, "bin", "python")
        messages = run(interpreter, "-m", "pip", "install", "-q", measure.resolve())
        if "ERROR" in messages:
            sys.exit(f"pip reports an error with {measure.name}:\n{messages}")

        messages = run(interpreter, "-W", "error", "-c", LOOP, cwd=folder)
        if messages:
            sys.exit(f"{measure.name} must record without messages:\n{messages}")

        report = run(Path(folder, "bin", "tfasr"), "report", "run", cwd=folder)
        if "WER 20 %" not in report:
            sys.exit(f"{measure.name} reports no time to WER 20 %:\n{report}")

        files = (path for path in Path(folder).rglob("*") if path.is_file())
        size = sum(path.lstat().st_size for path in files)
        print(f"{measure.name}: {size / 1e6:.0f} MB with Python's environment.")
        if size > MOST_BYTES:
            most = f"at most {MOST_BYTES / 1e6:.0f} MB"
            sys.exit(f"{measure.name} must need {most} with all its dependencies.")


def check_installed(python: str, measure: Path, wheel: Path) -> None:
    """Installs both wheels into a new environment, where the compiled parts must load."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", folder)
        interpreter = Path(folder, "bin", "python")
        install = [interpreter, "-m", "pip", "install", "-q"]
        run(*install, "--no-deps", measure.resolve(), wheel.resolve())
        run(*install, "numpy")
        print(run(interpreter, "-c", LOAD, cwd=folder), end="", flush=True)


def run(*command: str | Path, **options) -> str:
    """Returns what a command printed; ends the program with it if the command fails."""
    words = [str(word) for word in command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(words, **options, **pipes, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
