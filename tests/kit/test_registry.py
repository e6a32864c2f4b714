"""Registries: order, lookup, refusals by file and line, nothing imported before its use."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import tfasr.kit.registry
from tfasr.errors import UsageError
from tfasr.kit.registry import (
    Registry,
    load_plugin,
    plugins,
    record_plugins,
    require_plugins,
)

# Plug-ins: modules and files that are imported once, and errors that name file and
# line.

TOOLS: Registry


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory and a registry of each test's own; no plug-in outlives its test."""
    global TOOLS
    TOOLS = Registry("tool")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(tfasr.kit.registry, "_loaded", {})
    known = {*sys.modules}

    yield

    del TOOLS
    gc.collect()

    for name in {*sys.modules} - known:
        del sys.modules[name]


def test_a_module_of_the_working_directory_and_a_file_are_one(tmp_path):
    (tmp_path / "my_lab").mkdir()
    path = tmp_path / "my_lab" / "tools.py"
    path.write_text(
        "from tests.kit.test_registry import TOOLS\nTOOLS.register('saw', print)\nname = __name__\n"
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
        (
            "x = 1\nx = y\n",
            r"bad_\w+\.py:2: a plug-in must be importable.*NameError: name 'y'",
        ),
        ("x = (\n", r"bad_\w+\.py:1: a plug-in must be importable.*SyntaxError"),
        (
            "raise GeneratorExit('x')\n",
            r"bad_\w+\.py:1: a plug-in must be importable.*GeneratorE",
        ),
        (
            "import no_such_module\n",
            r"bad_\w+\.py:1: .*ModuleNotFoundError.*no_such_module",
        ),
        ("import sys\n\nsys.exit(3)\n", r"bad_\w+\.py:3: .*SystemExit: 3"),
        ("import json\njson.loads('{')\n", r"bad_\w+\.py:2: .*JSONDecodeError"),
        (
            "from tests.kit.test_registry import TOOLS\nTOOLS.register('axe', 1)\n"
            "TOOLS.register('axe', 2)\n",
            r"bad_\w+\.py:3: .*'axe'.*bad_\w+\.py:2",
        ),
    ],
)
@pytest.mark.parametrize("as_file", [True, False])
def test_a_plug_in_that_cannot_be_imported_names_file_and_line(
    tmp_path, source, message, as_file
):
    name = f"bad_{'file' if as_file else 'module'}"
    (tmp_path / f"{name}.py").write_text(source)

    with pytest.raises(UsageError, match=message) as error:
        load_plugin(f"{name}.py" if as_file else name)
    assert "\n" not in str(error.value)


SAW = "from tests.kit.test_registry import TOOLS\nTOOLS.register('saw', print)\n"


def test_a_run_without_plug_ins_notes_none(tmp_path):
    record_plugins(tmp_path)

    assert not (tmp_path / "plugins.json").exists()
    require_plugins(tmp_path)


@pytest.fixture
def run(tmp_path):
    """The folder of a run that used two plug-ins, one of which registers a tool."""
    (tmp_path / "saw.py").write_text(SAW)
    (tmp_path / "no_name.py").write_text("")
    load_plugin("saw.py")
    load_plugin("no_name")

    folder = tmp_path / "run"
    folder.mkdir()
    record_plugins(folder)
    return folder


def test_a_run_goes_on_with_the_plug_ins_that_it_noted(run, tmp_path, caplog):
    assert [(p.name, p.registers) for p in plugins()] == [
        (str(tmp_path / "saw.py"), {"tool": ["saw"]}),
        ("no_name", {}),
    ]

    require_plugins(run)

    assert not caplog.messages


def test_a_plug_in_that_has_changed_is_warned_of(run, tmp_path, caplog):
    with (tmp_path / "saw.py").open("a") as file:
        file.write("# changed\n")

    require_plugins(run)

    assert "saw.py has changed" in caplog.text


def test_a_run_goes_on_without_a_plug_in_only_where_it_needs_none(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(tfasr.kit.registry, "plugins", list)
    remedy = rf"run was trained with the plug-in .*registers tool saw.*--import {tmp_path}/saw\.py"

    with pytest.raises(UsageError, match=remedy):
        require_plugins(run)
    with pytest.raises(UsageError, match="saw"):
        require_plugins(run, kinds=("model", "tool"))

    require_plugins(run, kinds=("model",))


def test_a_module_that_is_imported_in_the_usual_way_is_known_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "usual.py").write_text(SAW)
    import usual  # noqa: F401

    assert [plugin.name for plugin in plugins()] == ["usual"]


def command_line(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tfasr.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [["report", "x"], ["bench", "step"], ["doctor"]])
def test_every_command_imports_and_says_what_it_cannot(tmp_path, command):
    (tmp_path / "fine.py").write_text("print('imported')\n")
    (tmp_path / "bad.py").write_text("\nraise ValueError('no')\n")

    done = command_line(*command, "--import", "fine.py", "--import", "bad.py")

    assert done.returncode == 2
    assert done.stdout == "imported\n"
    assert (
        "bad.py:2: a plug-in must be importable. Received: ValueError: no"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert "--import" in command_line(*command, "--help").stdout


def test_an_interrupt_while_modules_are_imported_is_no_traceback(tmp_path):
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt\n")
    done = command_line("doctor", "--import", "slow.py")

    assert (done.returncode, done.stderr) == (1, "tfasr: interrupted\n")


@pytest.mark.parametrize(
    "name", ["nowhere", "nowhere.at.all", "nowhere.py", "tests.nowhere", ""]
)
def test_a_plug_in_that_is_missing_is_named(name):
    with pytest.raises(
        UsageError, match=f"--import: a plug-in must be .*{name!r}|{name}"
    ):
        load_plugin(name)


def test_things_are_found_by_name_in_the_order_of_registration():
    tools = Registry("tool")

    @tools.register("saw")
    class Saw:
        pass

    hammer = tools.register("hammer", object())

    assert list(tools) == ["saw", "hammer"]
    assert tools["saw"] is Saw
    assert tools["hammer"] is hammer
    assert len(tools) == 2
    assert "saw" in tools
    assert "plane" not in tools
    assert tools.get("plane") is None
    assert tools.name_of(Saw) == "saw"
    assert tools.name_of(object) is None


def test_an_entry_says_where_it_was_registered():
    tools = Registry("tool")

    @tools.register("saw")
    class Saw:
        pass

    entry = tools.entry("saw")

    assert (entry.name, entry.module, entry.file) == ("saw", __name__, __file__)
    assert (
        '@tools.register("saw")'
        in Path(__file__).read_text().splitlines()[entry.line - 1]
    )


def test_an_unknown_name_lists_the_known():
    tools = Registry("tool", {"saw": "no_such_module:Saw", "axe": "no_such_module:Axe"})

    with pytest.raises(
        UsageError, match="no tool 'plane'.*Known tools: saw, axe.*--import"
    ):
        tools["plane"]


def test_a_name_is_registered_once_and_both_places_are_named(tmp_path):
    source = "def add(tools):\n    tools.register('saw', print)\n"
    functions = []
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(source)
        scope = {}
        exec(compile(source, str(tmp_path / name), "exec"), scope)
        functions.append(scope["add"])

    tools = Registry("tool")
    functions[0](tools)

    functions[0](tools)  # the same line again: its module was imported again

    with pytest.raises(UsageError, match=r"two\.py:2: .*'saw'.*one\.py:2"):
        functions[1](tools)
    assert list(tools) == ["saw"]


def test_a_built_in_name_cannot_be_taken():
    tools = Registry("tool", {"saw": "json:dumps"})

    with pytest.raises(UsageError, match="'saw'"):
        tools.register("saw", print)


def test_a_cell_of_a_notebook_may_define_a_name_again():
    tools = Registry("tool")
    for cell in ("<cell 1>", "<cell 2>"):
        source = "@tools.register('saw')\nclass Saw:\n    pass\n"
        scope = {"tools": tools, "__name__": "__main__"}

        exec(compile(source, cell, "exec"), scope)

        assert tools["saw"] is scope["Saw"]


@pytest.mark.parametrize("name", ["", "two words"])
def test_a_name_is_one_word(name):
    with pytest.raises(UsageError, match="test_registry.*one word"):
        Registry("tool").register(name, print)


def test_what_a_kind_must_have_is_checked_where_it_is_registered_and_when_it_is_imported():
    def check(thing):
        if not callable(thing):
            raise TypeError("it must be callable")

    tools = Registry("tool", {"path": "os:sep"}, check=check)

    with pytest.raises(
        UsageError, match=r"test_registry\.py:\d+: the tool 'saw' .*callable"
    ):
        tools.register("saw", 3)

    assert "saw" not in tools
    with pytest.raises(UsageError, match=r"the tool 'path' .*callable"):
        tools["path"]


def test_listing_built_in_names_imports_nothing():
    script = (
        "import sys\n"
        "from tfasr.kit.registry import Registry\n"
        "tools = Registry('tool', {'ndjson': 'wave:open'})\n"
        "assert list(tools) == ['ndjson'] and 'ndjson' in tools\n"
        "assert tools.entry('ndjson').module == 'wave'\n"
        "assert 'wave' not in sys.modules\n"
        "import wave\n"
        "assert tools.name_of(wave.open) == 'ndjson'\n"
        "assert tools['ndjson'] is wave.open\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
