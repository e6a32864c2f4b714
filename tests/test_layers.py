"""The shape of the house: imports point down and none go in circles."""

import ast
import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfasr

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it along
    import tomli as tomllib

from tests.density import FILE, densities, unexplained

PACKAGE = Path(tfasr.__file__).parent

# From the ground up. A module imports from its own package and from the lines above its
# own.
LAYERS = [
    ["_version", "errors"],
    ["kit"],
    ["letters"],
    ["normalisers"],
    ["alphabet", "cluster", "display", "layers", "ledger"],
    ["corpora", "decoding", "models", "scoring", "tta"],
    ["data", "telemetry"],
    ["reports", "verifying"],
    ["recording"],
    ["training"],
    ["recognising"],
    ["exporting", "serving"],
    ["adapters", "bench", "studies"],
    ["estimates"],
    ["api"],
    ["__init__"],
    ["commands"],
    ["cli"],
    ["__main__"],
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def modules(package: Path) -> dict[str, Path]:
    """The files of a package by their dotted names; a package stands for its
    ``__init__.py``.
    """
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    return names


def for_types_only(tree: ast.Module) -> set[ast.AST]:
    """The nodes that only type checkers read, below ``if TYPE_CHECKING``."""
    return {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }


def imports(files: dict[str, Path], *, types: bool = True) -> dict[str, set[str]]:
    """Which modules each module imports, wherever in its file it does.

    Without ``types``, what only type checkers import is left out.
    """
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped = set() if types else for_types_only(tree)
        for node in set(ast.walk(tree)) - skipped:
            if isinstance(node, ast.Import):
                found[name] |= {
                    alias.name for alias in node.names if alias.name in files
                }
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    found[name].add(submodule if submodule in files else node.module)

        found[name] &= files.keys()

    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that can each be reached from each other, and what imports
    itself.
    """
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen = set()
        waiting = list(graph[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(graph[name])

        reached[start] = seen

    found = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(circle) for circle in sorted(found)]


def room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def arrows_up(graph: dict[str, set[str]]) -> list[str]:
    return [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in sorted(others)
        if room(name) != room(other) and RANKS[room(name)] <= RANKS[room(other)]
    ]


FILES = modules(PACKAGE)


def test_no_module_imports_itself_however_far_around():
    assert circles(imports(FILES)) == []


def test_imports_point_down():
    unknown = {room(name) for name in FILES} - RANKS.keys()
    assert not unknown, f"give these a place in LAYERS: {unknown}"
    assert arrows_up(imports(FILES)) == []


MEASURE = tomllib.loads((PACKAGE.parent / "measure/pyproject.toml").read_text())


def measured() -> set[str]:
    """Returns the modules that tfasr-measure contains."""
    contents = MEASURE["tool"]["setuptools"]
    names = set(contents["py-modules"])
    # A module's package, if it has an __init__.py, is included too.
    packages = {name.rpartition(".")[0] for name in names} & FILES.keys()
    packages |= set(contents["packages"])
    for name, path in FILES.items():
        package = name
        if path.name != "__init__.py":
            package = name.rpartition(".")[0]
        if package in packages and (package == name or package in contents["packages"]):
            names.add(name)

    return names


def test_tfasr_measure_imports_nothing_of_the_rest():
    # `tfasr` parses api.py and imports a name when it is first used.
    inside = measured()
    graph = imports(FILES, types=False)
    outside = [
        f"{name} imports {other}"
        for name in sorted(inside - {"tfasr.api"})
        for other in sorted(graph[name] - inside)
    ]
    assert outside == []


def test_all_modules_of_packages_that_measure_are_in_tfasr_measure():
    """A new file isn't forgotten, as that would only show once the wheel is installed."""
    rooms = ("display", "kit", "ledger", "recording", "reports", "scoring", "telemetry")
    rooms += ("tta", "verifying")
    within = {name for name in FILES if room(name) in rooms}
    assert within <= measured()
    top = {
        name for name in FILES if name.count(".") < 2 and FILES[name].parent == PACKAGE
    }
    assert top <= measured()


def test_tfasr_measure_needs_few_packages_and_those_of_tfasr():
    project = MEASURE["project"]
    names = [re.match(r"[\w-]+", line)[0] for line in project["dependencies"]]
    assert len(set(names) - {"numpy", "scipy"}) <= 6

    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    required = setup["options"]["install_requires"].split("\n")
    extras = project["optional-dependencies"]
    assert set(project["dependencies"]) <= set(required)
    assert {*extras["figures"], *extras["flagfile"]} <= set(required)


def test_no_room_is_named_after_nothing():
    rooms = {"utils.py", "helpers.py", "common.py", "misc.py"}
    assert not [path for path in FILES.values() if path.name in rooms]


def write_package(folder: Path, **sources: str) -> dict[str, Path]:
    package = folder / "tfasr"
    for name, source in sources.items():
        path = package.joinpath(*name.split("__in__")[::-1]).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    return modules(package)


@pytest.mark.parametrize(
    "second",
    [
        "import tfasr.errors",
        "from tfasr import errors",
        "from tfasr.errors import x",
        "def f():\n    from tfasr import errors",
    ],
)
def test_a_circle_is_seen_however_it_is_imported(tmp_path, second):
    files = write_package(tmp_path, errors="import tfasr.alphabet", alphabet=second)
    assert circles(imports(files)) == [["tfasr.alphabet", "tfasr.errors"]]


def test_an_arrow_up_is_seen(tmp_path):
    files = write_package(tmp_path, errors="from tfasr import cli", cli="", alphabet="")
    assert arrows_up(imports(files)) == ["tfasr.errors imports tfasr.cli"]
    assert circles(imports(files)) == []


def test_no_package_becomes_denser():
    most = json.loads(FILE.read_text())
    denser = {
        name: now for name, now in densities().items() if now > most.get(name, 500.0)
    }
    hint = "break statements up and explain them; python -m tests.density writes lower densities"
    assert not denser, f"{denser} statements per 1000 lines, at most {most}: {hint}"


def test_many_parameters_and_fields_have_a_reason():
    without = {
        name: found
        for name, path in FILES.items()
        if (found := list(unexplained(path.read_text(encoding="utf-8"))))
    }
    assert not without, "say in the docstring why there are so many"


@pytest.mark.parametrize(
    ("docstring", "found"),
    [
        ("Does it.", ["f"]),
        ("Does it; its parameters are those of the kernel.", []),
        ("Does it.\n\n    Args:\n        a: first.\n    ", []),
    ],
)
def test_a_function_of_many_parameters_is_seen(docstring, found):
    source = f'def f(a, b, c, d, e, f, g):\n    """{docstring}"""\n'
    assert list(unexplained(source)) == found


def test_a_class_of_many_fields_is_seen():
    fields = "".join(f"    a{number}: int\n" for number in range(13))
    assert list(unexplained(f"class A:\n{fields}")) == ["A"]
    assert list(unexplained(f'class A:\n    """Has many fields."""\n{fields}')) == []


def test_importing_tfasr_loads_no_tensorflow_and_every_public_name_exists():
    script = (
        "import sys, tfasr; tfasr.Alphabet(); assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    for name in tfasr.__all__:
        assert getattr(tfasr, name) is not None
