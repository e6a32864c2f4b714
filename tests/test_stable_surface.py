"""What users rely on is there: flags, gin names, registered names, `import tfasr`, ledger keys.

`data_before_fold/surface.json` lists them as of the commit before the house was folded. What is
added needs no change here; what is gone fails. The list was written by that commit, with
``python -m tests.test_stable_surface``.
"""

import argparse
import ast
import contextlib
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfasr
from tests.test_layers import FILES
from tfasr.cli import COMMANDS, command_parts
from tfasr.commands import settings
from tfasr.kit import registry
from tfasr.ledger import events as ledger

ROOT = Path(__file__).parents[1]
SURFACE = ROOT / "tests" / "data_before_fold" / "surface.json"


def options(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Options and positional arguments of a parser, and of each of its subcommands."""
    names: dict[str, list[str]] = {"": []}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, subparser in action.choices.items():
                names[f" {command}"] = options(subparser)[""]
        else:
            names[""] += action.option_strings or [action.dest]
    return {command: sorted(flags) for command, flags in names.items()}


def flags() -> dict[str, list[str]]:
    found = {}
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        add_arguments, _, _ = command_parts(name)
        add_arguments(parser)
        found.update({name + command: flags for command, flags in options(parser).items()})
    return found


def gin_names() -> dict[str, list[str]]:
    """Configurables by their short names, with the parameters of tfasr's own."""
    for name in FILES:
        with contextlib.suppress(ModuleNotFoundError):  # JAX, PyTorch and adapters' frameworks
            importlib.import_module(name)
    from gin import config

    return {
        selector.rpartition(".")[2]: sorted(inspect.signature(configurable.wrapped).parameters)
        if selector.startswith("tfasr.")
        else []
        for selector, configurable in config._REGISTRY.items()
        if selector.startswith(("tfasr.", "keras."))
    }


def registered() -> dict[str, list[str]]:
    registries = [reference() for reference in registry._registries]
    return {one.kind: sorted(one) for one in registries if one is not None}


def strings() -> set[str]:
    """All words of the package that can be a key: string constants and fields of dataclasses."""
    trees = [ast.parse(path.read_text()) for path in Path(tfasr.__file__).parent.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    fields = [
        node.target.id
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return {word for word in [*constants, *fields] if re.fullmatch(r"\w+", str(word))}


def written(key: str, words: set[str]) -> bool:
    """Whether the package names a ledger's key, or the interval that it starts or stops."""
    return key in words or re.sub(r"_(start|stop)$", "", key) in words


def ledger_keys() -> list[str]:
    """The keys and fields that the ledger's documentation names and the package writes."""
    text = re.sub(r"``(\w+)_start/_stop``", r"``\1_start`` ``\1_stop``", ledger.__doc__ or "")
    words = strings()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"``(.*?)``", text, re.DOTALL))))
    return sorted(key for key in named if not key.isdigit() and written(key, words))


def surface() -> dict:
    return {
        "flags": flags(),
        "public": {"tfasr": sorted(tfasr.__all__)},
        "gin": gin_names(),
        "registered": registered(),
        "ledger": {"keys": ledger_keys()},
    }


@pytest.fixture(scope="module")
def today() -> dict:
    # In a process of its own: all of tfasr is imported, and other tests register names.
    command = [sys.executable, "-m", "tests.test_stable_surface"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["flags", "public", "gin", "registered"])
def test_nothing_that_users_rely_on_is_gone(today, kind):
    before = json.loads(SURFACE.read_text())[kind]
    assert before.keys() <= today[kind].keys(), kind
    gone = {name: sorted(set(before[name]) - set(today[kind][name])) for name in before}
    assert not {name: missing for name, missing in gone.items() if missing}


def test_tfasr_settings_reads_from_the_sources_what_gin_knows(today):
    listed = {
        name: sorted(setting.name.partition(".")[2] for setting in group.settings)
        for name, group in (settings.optimizers() | settings.own_settings()).items()
    }
    assert {name: listed[name] for name in today["gin"] if today["gin"][name]} == {
        name: parameters for name, parameters in today["gin"].items() if parameters
    }
    assert today["gin"].keys() <= listed.keys()
    unsaid = [s.name for g in settings.own_settings().values() for s in g.settings if not s.meaning]
    assert unsaid == []


def test_every_key_of_the_ledger_is_still_written():
    words = strings()
    keys = json.loads(SURFACE.read_text())["ledger"]["keys"]
    assert [key for key in keys if not written(key, words)] == []


if __name__ == "__main__":
    print(json.dumps(surface(), indent=1))
