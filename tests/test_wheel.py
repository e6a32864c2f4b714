"""The wheel carries the presets; released, it shares no file with tfasr-measure's."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tfasr
from tfasr.tta.published.results import SOURCES

ROOT = Path(__file__).parents[1]
# Stands for the compiler and the linker: each output is an empty file.
WRITES_NOTHING = """\
#!/bin/sh
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then : > "$2"; fi
    shift
done
"""


@pytest.mark.slow
def test_the_wheel_holds_package_and_presets(tmp_path):
    if not (ROOT / "setup.py").is_file():
        pytest.skip("needs the project's own folder, not an installed package")
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "*.egg-info", "demo", "*.so"
    )
    shutil.copytree(ROOT, source, ignore=ignored)
    # The compiled parts are built and tested elsewhere; here only their names count.
    compiler = tmp_path / "compiler"
    compiler.write_text(WRITES_NOTHING)
    compiler.chmod(0o755)
    environment = {**os.environ, "CC": str(compiler), "CXX": str(compiler)}
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    for project, out in ((source, "whole"), (source / "measure", "measure")):
        subprocess.run(
            [*build, str(tmp_path / out)],
            cwd=project,
            check=True,
            capture_output=True,
            env=environment,
        )

    (wheel,) = tmp_path.glob("whole/*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    presets = {
        str(path.relative_to(ROOT / "gin")) for path in (ROOT / "gin").rglob("*.gin")
    }
    assert {f"tfasr/presets/{preset}" for preset in presets} <= names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "tfasr").rglob("*.py")}
    assert modules <= names
    assert {"tfasr/py.typed", "tfasr/__init__.pyi"} <= names
    assert {"tfasr/reports/page.css", "tfasr/reports/page.js"} <= names
    assert "tfasr/serving/page.html" in names
    assert {f"tfasr/tta/published/{name}.json" for name in SOURCES} <= names
    assert not [name for name in names if name.startswith(("tests/", "gin/"))]

    (measure,) = tmp_path.glob("measure/*.whl")
    rest = wheels_script().rest(
        sys.executable, wheel, measure, tmp_path / "rest", os.environ
    )
    assert rest.name == wheel.name
    assert files_of(rest) | files_of(measure) == files_of(wheel)
    assert not files_of(rest) & files_of(measure)
    archive = zipfile.ZipFile(rest)
    about = {
        Path(name).name: name for name in archive.namelist() if ".dist-info" in name
    }
    assert "entry_points.txt" not in about
    version = tfasr.__version__
    headers = archive.read(about["METADATA"]).decode().partition("\n\n")[0]
    assert f"\nRequires-Dist: tfasr-measure=={version}" in headers
    assert archive.testzip() is None


def files_of(wheel: Path) -> set[str]:
    """Returns the files that a wheel installs, without those about itself."""
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if ".dist-info/" not in name}


def wheels_script():
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "release/wheels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
