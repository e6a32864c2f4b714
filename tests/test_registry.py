"""Registries: order, lookup, refusals by file and line, nothing imported before its use."""

import subprocess
import sys
from pathlib import Path

import pytest

from tfasr.errors import UsageError
from tfasr.kit.registry import Registry


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
    assert '@tools.register("saw")' in Path(__file__).read_text().splitlines()[entry.line - 1]


def test_an_unknown_name_lists_the_known():
    tools = Registry("tool", {"saw": "no_such_module:Saw", "axe": "no_such_module:Axe"})
    with pytest.raises(UsageError, match="no tool 'plane'.*Known tools: saw, axe.*--import"):
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
    with pytest.raises(UsageError, match=r"test_registry\.py:\d+: the tool 'saw' .*callable"):
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
