"""The wheel carries the presets."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tfasr.tta.published.results import SOURCES

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_holds_package_and_presets(tmp_path):
    if not (ROOT / "setup.py").is_file():
        pytest.skip("needs the project's own folder, not an installed package")
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "*.egg-info", "demo", "*.so"
    )
    shutil.copytree(ROOT, source, ignore=ignored)
    # What the compiled parts compute is tested elsewhere; here they are only to be
    # built soon.
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CXX", "c++")} "$@" -O0\n')
    compiler.chmod(0o755)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(tmp_path),
        ],
        cwd=source,
        check=True,
        capture_output=True,
        env={**os.environ, "CC": str(compiler), "CXX": str(compiler)},
    )
    (wheel,) = tmp_path.glob("*.whl")
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
