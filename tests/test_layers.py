"""The shape of the house: imports point down, modules stay small."""

import ast
from pathlib import Path

import pytest

import tfasr

PACKAGE = Path(tfasr.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

RANKS = {
    **dict.fromkeys(["alphabet", "metrics", "ledger", "errors", "config", "losses", "_version"], 0),
    "presets_folder": 0,
    **dict.fromkeys(["corpora", "layers", "scoring"], 1),
    **dict.fromkeys(["models", "data", "decoding", "tta", "telemetry"], 2),
    **dict.fromkeys(["training", "bench", "report"], 3),
    "gin_config": 4,
    "commands": 5,
    "cli": 6,
    "__init__": 7,
}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.split(".")[1] for name in names if name.startswith("tfasr.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    above = {name for name in imported(path) if RANKS[name] > RANKS[room]}
    assert not above, f"{path} imports from above: {above}"


def test_modules_are_small():
    lengths = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert {str(path): n for path, n in lengths.items() if n > 300} == {}
    rooms = {"utils.py", "helpers.py", "common.py", "misc.py"}
    assert not [path for path in MODULES if path.name in rooms]


def test_importing_tfasr_loads_no_tensorflow_and_every_public_name_exists():
    import subprocess
    import sys

    script = "import sys, tfasr; tfasr.Alphabet(); assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
    for name in tfasr.__all__:
        assert getattr(tfasr, name) is not None
