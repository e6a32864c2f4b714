"""A function called in a new process: values, errors, deaths, and what it may import."""

import math
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfasr
from tests import child_functions
from tests.child_functions import (
    Parcel,
    count_and_die,
    double_each,
    fail,
    leave,
    send_back,
    where_from,
)
from tfasr.errors import RunError, UsageError
from tfasr.kit import process as cores
from tfasr.kit import registry as plugins
from tfasr.kit.config import config_class
from tfasr.kit.process import (
    ChildError,
    Correspondence,
    call,
    child_environment,
    module_command,
    pickled,
    stream,
)

ROOT = Path(child_functions.__file__).parents[1]


@config_class
class Sizes:
    """A config with a nested tuple."""

    pairs: tuple[tuple[str, float], ...] = ()


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
)
VALUES = st.recursive(
    SCALARS | st.text("ab", min_size=1).map(Path),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers() | st.tuples(st.text()), inner)
        | st.builds(Parcel, st.text(), st.lists(st.integers()).map(tuple))
    ),
    max_leaves=8,
)


@given(VALUES)
def test_values_come_back_with_their_types(value):
    again = pickle.loads(pickled(value))

    assert again == value
    assert type(again) is type(value)


def test_configs_functions_and_classes_come_back():
    for value in (Sizes(pairs=(("a", 1),)), send_back, Parcel):
        assert pickle.loads(pickled(value)) == value
    assert math.isnan(pickle.loads(pickled(math.nan)))


def test_numbers_of_numpy_become_pythons():
    again = pickle.loads(
        pickled([np.int64(3), {"x": np.float32(0.5)}, (np.float64(0.1),)])
    )

    assert again == [3, {"x": 0.5}, (0.1,)]
    assert [type(again[0]), type(again[1]["x"]), type(again[2][0])] == [
        int,
        float,
        float,
    ]


@pytest.mark.parametrize("value", [lambda: 1, threading.Lock(), (n for n in ())])
def test_what_cannot_be_sent_is_refused(value):
    with pytest.raises(TypeError, match="Received"):
        pickled([value])


def test_what_a_script_defines_cannot_be_sent(monkeypatch):
    for value in (send_back, Parcel):
        monkeypatch.setattr(value, "__module__", "__main__")

        with pytest.raises(TypeError, match=r"Received.*importable module"):
            pickled([value])


def test_a_process_returns_a_typed_value_whatever_it_prints(capfd):
    parcel = Parcel("x", (1, 2), Path("a/b"), Parcel("y", ()))
    assert call(send_back, parcel) == parcel

    captured = capfd.readouterr()

    assert captured.out == ""
    assert "said on the way" in captured.err


@pytest.mark.parametrize(("kind", "raised"), [("usage", UsageError), ("run", RunError)])
def test_errors_for_the_user_come_through(kind, raised):
    with pytest.raises(raised, match="^said so$"):
        call(fail, kind, show_messages=False)


def test_a_process_that_dies_is_named_with_its_last_messages():
    with pytest.raises(ChildError, match="Measuring it failed.*exit code 1") as caught:
        call(fail, "other", task="Measuring it", show_messages=False)
    assert caught.value.exit_code == 1
    assert "a complaint" in caught.value.messages
    assert "KeyError" in str(caught.value)
    with pytest.raises(ChildError, match="child_functions:leave on torch failed"):
        call(leave, backend="torch")


def test_what_was_yielded_before_a_death_is_kept():
    result = []

    with pytest.raises(ChildError, match="signal 9"):
        for number in stream(count_and_die, 3):
            result.append(number)

    assert result == [0, 1, 2]


def test_backend_environment_and_plugins_are_the_childs(tmp_path, monkeypatch):
    (tmp_path / "lab.py").write_text("import os\n\nos.environ['PLUGIN'] = 'loaded'\n")
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv("PLUGIN", "none")
    plugins.load_plugin(str(tmp_path / "lab.py"))
    monkeypatch.setenv("PLUGIN", "none")

    result = call(where_from, backend="torch", environment={"FLAVOUR": "mint"})

    assert (result["backend"], result["flavour"]) == ("torch", "mint")
    assert result["plugin"] == "loaded"
    assert result["tfasr"] == tfasr.__file__
    assert call(where_from, plugins=[])["plugin"] == "none"


@pytest.fixture
def hostile_folder(tmp_path, monkeypatch):
    """A working directory, also of PYTHONPATH, whose modules end whoever imports them."""
    for name in ("json", "random", "keras", "logging"):
        (tmp_path / f"{name}.py").write_text(
            "raise SystemExit('the working directory ran')\n"
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(ROOT), ""]))
    return tmp_path


def test_a_function_takes_nothing_from_the_working_directory(hostile_folder):
    result = call(where_from)

    assert str(hostile_folder) not in result["path"].split(os.pathsep)
    assert Path(result["json"]).parent.name == "json"


def test_a_modules_command_takes_nothing_from_the_working_directory(hostile_folder):
    command = module_command("tfasr.cli", "--version")
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=child_environment()
    )

    assert done.stdout.startswith("tfasr ")


def test_the_folder_of_a_function_is_the_last_to_be_searched(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('a neighbour ran')\n")
    (tmp_path / "mine.py").write_text(
        "def answer():\n    import json\n    return json.dumps([1])\n"
    )
    script = "import json, sys; sys.path.append(sys.argv[1]); import mine, tfasr.kit.process; "
    script += "print(tfasr.kit.process.call(mine.answer))"

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "[1]\n"), done.stderr


def test_a_correspondence_answers_one_by_one_until_it_is_closed():
    other = Correspondence(double_each, "x", task="Doubling")
    try:
        with pytest.raises(TimeoutError, match="Doubling has not yet answered"):
            other.next_answer(0)

        for number in (1, 2):
            other.send(Parcel("p", (number,)))

        assert [other.next_answer(60) for _ in range(2)] == [("x", 2), ("x", 4)]
    finally:
        other.close()

    assert not Path(f"/proc/{other.pid}").exists()


def test_a_usage_error_ends_a_correspondence_in_its_own_words():
    other = Correspondence(double_each, "x", task="Doubling")
    other.send("usage")

    with pytest.raises(UsageError, match="^said so$"):
        other.next_answer(60)

    other.close()


def test_an_error_ends_a_correspondence_with_its_cause():
    other = Correspondence(double_each, "x", task="Doubling")

    other.send("other")

    for _ in range(2):  # as often as it is asked
        with pytest.raises(ChildError, match="(?s)exit code.*KeyError") as caught:
            other.next_answer(60)

    assert caught.value.exit_code == 1

    other.send("too late")
    other.close()


CORRESPONDS = """
from tests.child_functions import double_each
from tfasr.kit.process import Correspondence
other = Correspondence(double_each, "x", task="Doubling")
other.send("pid")
pid = other.next_answer(60)
"""
CALLS = """
from tests.child_functions import work_for_long
from tfasr.kit.process import stream
answers = stream(work_for_long)
pid = next(answers)
"""


@pytest.mark.parametrize("begins", [CORRESPONDS, CALLS])
def test_a_process_ends_with_the_one_that_began_it(begins):
    script = f"{begins}\nimport os\nprint(pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 60

    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline

        time.sleep(0.02)


def test_a_process_that_wrote_nothing_is_not_said_to_have_left_messages():
    with pytest.raises(ChildError, match="signal 9") as caught:
        list(stream(count_and_die, 0, show_messages=False))
    assert "above" not in str(caught.value)


# How many cores a process may use: where it may run, and what its control group grants.


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        (
            "0::/a\n",
            {
                "sys/fs/cgroup/a/cpu.max": "max 100000",
                "sys/fs/cgroup/cpu.max": "200000 100000",
            },
            2,
        ),
        (
            "4:memory:/m\n3:cpu,cpuacct:/a\n",
            {
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            "3:cpu:/\n",
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            math.inf,
        ),
        ("0::/../..\n", {}, math.inf),
    ],
)
def test_a_quota_is_the_least_of_the_groups_around(tmp_path, groups, files, expected):
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert cores.quota(tmp_path) == expected


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cores.quota(tmp_path) == math.inf


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is Linux's")
@pytest.mark.parametrize(
    ("granted", "expected"), [(math.inf, 3), (2.9, 2), (0.4, 1), (8, 3)]
)
def test_cores_are_those_of_the_affinity_within_the_quota(
    monkeypatch, granted, expected
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5})
    monkeypatch.setattr(cores, "quota", lambda: granted)

    assert cores.usable_cores() == expected
