"""Plug-ins: modules and files that are imported once, and errors that name file and line."""

import sys

import pytest

from tfasr.errors import UsageError
from tfasr.plugins import load_plugin
from tfasr.registry import Registry

TOOLS = Registry("tool")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = {*sys.modules}
    yield
    for name in {*sys.modules} - known:
        del sys.modules[name]


def test_a_module_of_the_working_directory_and_a_file_are_one(tmp_path):
    (tmp_path / "my_lab").mkdir()
    path = tmp_path / "my_lab" / "tools.py"
    path.write_text(
        "from tests.test_plugins import TOOLS\nTOOLS.register('saw', print)\nname = __name__\n"
    )
    module = load_plugin("my_lab.tools")
    assert TOOLS["saw"] is print
    assert load_plugin("my_lab.tools") is module
    assert load_plugin("my_lab/tools.py") is module
    assert load_plugin(str(path)) is module


def test_a_file_gets_a_name_that_no_installed_module_has(tmp_path):
    (tmp_path / "json.py").write_text("answer = 42\n")
    module = load_plugin("json.py")
    assert module.answer == 42
    assert sys.modules["json"] is not module
    assert sys.modules[module.__name__] is module


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nx = y\n", r"bad_\w+\.py:2: a plug-in must be importable.*NameError: name 'y'"),
        ("x = (\n", r"bad_\w+\.py:1: a plug-in must be importable.*SyntaxError"),
        ("import no_such_module\n", r"bad_\w+\.py:1: .*ModuleNotFoundError.*no_such_module"),
        ("import sys\n\nsys.exit(3)\n", r"bad_\w+\.py:3: .*SystemExit: 3"),
        ("import json\njson.loads('{')\n", r"bad_\w+\.py:2: .*JSONDecodeError"),
        (
            "from tests.test_plugins import TOOLS\nTOOLS.register('axe', 1)\n"
            "TOOLS.register('axe', 2)\n",
            r"bad_\w+\.py:3: each tool must have a name of its own.*'axe'.*bad_\w+\.py:2",
        ),
    ],
)
@pytest.mark.parametrize("as_file", [True, False])
def test_a_plug_in_that_cannot_be_imported_names_file_and_line(tmp_path, source, message, as_file):
    name = f"bad_{'file' if as_file else 'module'}"
    TOOLS._entries.pop("axe", None)
    (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(UsageError, match=message) as error:
        load_plugin(f"{name}.py" if as_file else name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.at.all", "nowhere.py", "tests.nowhere", ""])
def test_a_plug_in_that_is_missing_is_named(name):
    with pytest.raises(UsageError, match=f"--import: a plug-in must be .*{name!r}|{name}"):
        load_plugin(name)
