"""Local workers: what they are told, how their output is shown, and that all end when one does."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.cluster import launcher
from tfasr.cluster.description import (
    Cluster,
    expand_nodes,
    named_cluster,
    tasks_per_node,
)
from tfasr.cluster.launcher import thread_variables
from tfasr.errors import UsageError

# What --cluster and --rank name, from lists of addresses, TF_CONFIG and SLURM's
# variables.

ADDRESSES = ("node1:12345", "node2:12345", "node2:12346")
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1,2",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
}


def test_addresses_and_a_rank_name_a_cluster():
    cluster = named_cluster(",".join(ADDRESSES), 2, {})
    assert cluster == Cluster(ADDRESSES, 2)
    assert (cluster.size, cluster.local_rank) == (3, 1)
    assert cluster.name(0) == "worker 0, the chief (node1:12345)"
    assert cluster.name(2) == "worker 2 (node2:12346)"
    assert named_cluster(None, None, {}) is None


@pytest.mark.parametrize(
    ("name", "rank", "said"),
    [
        (None, 1, "--rank must come with --cluster"),
        ("slurm", 1, "--rank must be left out with --cluster slurm"),
        ("here", 0, "--cluster must be tf_config, slurm or addresses"),
        ("a:1,b:2", None, "--rank must give"),
        ("a:1,b:2", 2, "rank must be 0 to 1"),
        ("a:1,b:2", -1, "rank must be 0 to 1"),
        ("a:1,a:1", 0, "Received more than once: a:1"),
        ("a:1,b:0", 0, "must be HOST:PORT"),
        ("a:1,b:65536", 0, "must be HOST:PORT"),
        ("a:1,:2", 0, "must be HOST:PORT"),
        ("a:1,", 0, "must be HOST:PORT"),
    ],
)
def test_a_wrong_description_is_refused_in_one_line(name, rank, said):
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        named_cluster(name, rank, {})
    assert "\n" not in str(caught.value)


def config(cluster, kind="worker", index=0):
    return {
        "TF_CONFIG": json.dumps(
            {"cluster": cluster, "task": {"type": kind, "index": index}}
        )
    }


def test_tf_config_puts_a_chief_before_the_workers():
    jobs = {"worker": ["w0:1", "w1:1"], "chief": ["c:1"]}
    assert named_cluster("tf_config", None, config(jobs, "worker", 1)) == Cluster(
        ("c:1", "w0:1", "w1:1"), 2
    )
    assert named_cluster("tf_config", None, config(jobs, "chief", 0)).rank == 0
    assert named_cluster("tf_config", None, config({"worker": ["w:1"]})).size == 1


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": "{"},
        {"TF_CONFIG": "[]"},
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'},
        config({}),
        config({"worker": "a:1"}),
        config({"worker": [1]}),
        config({"worker": ["a:1"], "ps": ["b:1"]}),
        config({"worker": ["a:1"]}, "chief"),
        config({"worker": ["a:1"]}, index=1),
        config({"worker": ["a:1"]}, index=-1),
        config({"worker": ["a:1"]}, index=True),
        config({"worker": ["a:1"]}, index="0"),
        {"TF_CONFIG": "[" * 100_000},
        {"TF_CONFIG": "{\n" * 100_000},
    ],
)
def test_a_tf_config_that_describes_no_workers_is_refused(environment):
    with pytest.raises(UsageError, match="TF_CONFIG must"):
        named_cluster("tf_config", None, environment)
    with pytest.raises(UsageError) as caught:
        named_cluster("tf_config", None, environment)
    assert "\n" not in str(caught.value)


def test_slurm_fills_one_node_after_the_other():
    cluster = named_cluster("slurm", None, STEP)
    hosts = [address.split(":")[0] for address in cluster.addresses]
    assert (hosts, cluster.rank, cluster.local_rank) == (
        ["node1", "node2", "node2"],
        2,
        1,
    )
    assert len(set(cluster.addresses)) == 3
    # All tasks of a step must come to the same addresses.
    first = named_cluster(
        "slurm", None, {**STEP, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    )
    assert first.addresses == cluster.addresses
    other = named_cluster("slurm", None, {**STEP, "SLURM_JOB_ID": "78"})
    assert not set(other.addresses) & set(cluster.addresses)


def test_slurm_takes_the_ports_that_srun_reserved_and_older_names():
    reserved = named_cluster(
        "slurm", None, {**STEP, "SLURM_STEP_RESV_PORTS": "12001-12003"}
    )
    assert reserved.addresses == ("node1:12001", "node2:12001", "node2:12002")
    older = {
        n.replace("_STEP_TASKS", "_TASKS").replace("STEP", "JOB"): v
        for n, v in STEP.items()
    }
    assert named_cluster("slurm", None, older) == named_cluster("slurm", None, STEP)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SLURM_PROCID": None}, "SLURM_PROCID must be set"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID must be a number"),
        ({"SLURM_PROCID": "3"}, "below the number of tasks, 3"),
        ({"SLURM_STEP_NODELIST": None}, "SLURM_STEP_NODELIST must be set"),
        ({"SLURM_STEP_NODELIST": "node[1-"}, "SLURM_STEP_NODELIST must be a list"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3"}, "the tasks of each node"),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "2(x"},
            "SLURM_STEP_TASKS_PER_NODE must be counts",
        ),
        ({"SLURM_NODEID": "0"}, "--distribution=block"),
        ({"SLURM_STEP_RESV_PORTS": "12001"}, "must have 2 ports"),
        ({"SLURM_JOB_ID": None}, "SLURM_JOB_ID must be set"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1000000000"}, "SLURM_STEP_TASKS_PER_NODE"),
        ({"SLURM_STEP_TASKS_PER_NODE": "9" * 5000}, "SLURM_STEP_TASKS_PER_NODE"),
        ({"SLURM_STEP_TASKS_PER_NODE": "999999,1"}, "SLURM_STEP_TASKS_PER_NODE"),
        (
            {"SLURM_STEP_TASKS_PER_NODE": ",".join(["1(x99999)"] * 9999)},
            "must be counts",
        ),
        (
            {"SLURM_STEP_NODELIST": ",".join(["a[1-99999]"] * 9999)},
            "SLURM_STEP_NODELIST",
        ),
        (
            {"SLURM_STEP_NODELIST": f"a[{','.join(['1-99999'] * 9999)}]"},
            "SLURM_STEP_NODELIST",
        ),
        ({"SLURM_STEP_NODELIST": f"a[{'9' * 5000}]"}, "SLURM_STEP_NODELIST"),
        ({"SLURM_STEP_RESV_PORTS": f"1-{'9' * 5000}"}, "must have 2 ports"),
    ],
)
def test_slurm_variables_that_do_not_fit_together_are_refused(changed, said):
    environment = {n: v for n, v in {**STEP, **changed}.items() if v is not None}
    with pytest.raises(UsageError, match=re.escape(said)):
        named_cluster("slurm", None, environment)


def test_the_largest_step_is_read_at_once():
    largest = {
        "SLURM_STEP_NODELIST": "n[1-99999]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x99999)",
    }
    last = {"SLURM_PROCID": "99998", "SLURM_NODEID": "99998"}
    assert named_cluster("slurm", None, {**STEP, **largest, **last}).size == 99999


def test_lists_of_nodes_as_slurm_writes_them():
    assert expand_nodes("node[001-003,7],gpu1") == [
        "node001",
        "node002",
        "node003",
        "node7",
        "gpu1",
    ]
    assert expand_nodes("r[1-2]n[09-10]-ib") == [
        "r1n09-ib",
        "r1n10-ib",
        "r2n09-ib",
        "r2n10-ib",
    ]
    assert expand_nodes("a,b-c") == ["a", "b-c"]
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,",
        "a[",
        "a]",
        "a[]",
        "a[2-1]",
        "a[1-x]",
        "a[[1]]",
        "a[1-999999999]",
        "a[1,]",
    ],
)
def test_what_is_no_list_of_nodes_is_refused(text):
    with pytest.raises(UsageError, match="must be a list such as"):
        expand_nodes(text)


@st.composite
def node_lists(draw):
    """A list in SLURM's notation and the names that it stands for, written out by hand."""
    parts = []
    names = []
    for _ in range(draw(st.integers(1, 4))):
        prefix = draw(st.from_regex(r"[a-z][a-z-]{0,4}", fullmatch=True))
        ranges = []
        numbers = []
        for _ in range(draw(st.integers(0, 3))):
            first = draw(st.integers(0, 120))
            more = draw(st.integers(0, 12))
            width = draw(st.integers(1, 5))
            ranges.append(
                f"{first:0{width}}" + (f"-{first + more:0{width}}" if more else "")
            )
            numbers += [
                f"{n:0{max(width, len(str(first)))}}"
                for n in range(first, first + more + 1)
            ]

        parts.append(prefix + (f"[{','.join(ranges)}]" if ranges else ""))
        names += [prefix + number for number in numbers] if ranges else [prefix]

    return ",".join(parts), names


@given(node_lists())
def test_a_list_of_nodes_stands_for_its_names_in_order(case):
    text, names = case
    assert expand_nodes(text) == names


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=5)
)
def test_counts_of_tasks_are_repeated(pairs):
    text = ",".join(
        f"{tasks}(x{nodes})" if nodes > 1 else f"{tasks}" for tasks, nodes in pairs
    )
    assert tasks_per_node(text) == [
        tasks for tasks, nodes in pairs for _ in range(nodes)
    ]


@given(st.text(alphabet="ab1-,[]() x", max_size=20))
def test_any_text_is_a_list_of_nodes_or_refused(text):
    try:
        names = expand_nodes(text)
    except UsageError:
        return

    assert names
    assert not any(sign in name for name in names for sign in "[],")


# Stands for a training: a plug-in runs while the command line is parsed, before
# TensorFlow loads.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
config = json.loads(os.environ["TF_CONFIG"])
rank = config["task"]["index"]
print("of", len(config["cluster"]["worker"]))
print("error of", rank, file=sys.stderr)
sys.stdout.flush()
{what}
os._exit(0)
"""
# The tests may run under nohup, which lets all processes ignore SIGHUP.
LAUNCH = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from tfasr.cluster import launcher
launcher.NOTICE_S, launcher.END_S = {notice_s}, {end_s}
sys.exit(launcher.launch(3, sys.argv[1:], {restarts}))
"""


@pytest.fixture
def start(tmp_path):
    """Returns a function that launches three workers that do something."""
    begun = []

    def launching(
        what: str,
        notice_s: float = 1.0,
        end_s: float = 1.0,
        restarts: int | None = None,
    ) -> subprocess.Popen:
        plugin = tmp_path / "worker.py"
        plugin.write_text(WORKER.format(what=what))
        script = LAUNCH.format(notice_s=notice_s, end_s=end_s, restarts=restarts)
        command = [
            sys.executable,
            "-c",
            script,
            "watch",
            "--import",
            str(plugin),
            str(tmp_path),
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        begun.append(process)
        return process

    yield launching
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_workers_share_the_processors_unless_the_user_says_how(monkeypatch):
    monkeypatch.setattr(launcher, "usable_cores", lambda: 8)
    both = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    assert thread_variables(3, {}) == dict.fromkeys(both, "2")
    assert thread_variables(9, {"OMP_NUM_THREADS": "4"}) == {
        "TF_NUM_INTRAOP_THREADS": "1"
    }


RETRIES = """
tries = Path({folder!r}) / "tries"
begun = len(tries.read_text()) if tries.exists() else 0
if rank == 1:
    tries.write_text("x" * (begun + 1))
    os._exit(3)
while rank == 0 and (not tries.exists() or len(tries.read_text()) < {wanted}):
    time.sleep(0.05)
if rank == 2:
    time.sleep(600)
os._exit({code})
"""


@pytest.mark.parametrize(("restarts", "code"), [(0, 0), (2, 0), (1, 5)])
def test_with_restarts_a_failed_worker_is_started_again_and_all_end_with_the_first(
    start, tmp_path, restarts, code
):
    what = RETRIES.format(folder=str(tmp_path), wanted=restarts + 1, code=code)
    process = start("import time\n" + what, notice_s=0.3, end_s=1.0, restarts=restarts)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert errors.count("worker 1 has failed and is started again") == restarts
    assert (tmp_path / "tries").read_text() == "x" * (restarts + 1)


def test_output_comes_with_the_workers_number(start):
    process = start("")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert sorted(out.splitlines()) == ["[0] of 3", "[1] of 3", "[2] of 3"]
    assert sorted(errors.splitlines()) == [f"[{k}] error of {k}" for k in range(3)]


def test_one_failure_ends_all_with_its_exit_code_and_politely_first(start, tmp_path):
    file = tmp_path / "told"
    what = f"""
folder = Path({str(tmp_path)!r})
if rank == 0:
    def told(*_):
        (folder / "told").write_text("SIGTERM")
        os._exit(3)
    signal.signal(signal.SIGTERM, told)
if rank == 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / f"ready-{{rank}}").touch()
if rank == 1:
    while len(list(folder.glob("ready-*"))) < 3:
        time.sleep(0.02)
    os._exit(7)
time.sleep(100)
"""
    process = start(what)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 7
    assert "worker 1 ended with exit code 7: ending the others" in errors
    assert file.read_text() == "SIGTERM"


def test_who_ends_by_itself_in_time_is_not_signalled(start, tmp_path):
    file = tmp_path / "told"
    what = f"""
signal.signal(signal.SIGTERM, lambda *_: Path({str(file)!r}).write_text("SIGTERM"))
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
"""
    process = start(what, notice_s=60.0)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 128 + signal.SIGKILL
    assert "worker 2 ended with signal 9" in errors
    assert not file.exists()


def test_signals_are_passed_on_once(start):
    what = """
times = []
def told(*_):
    times.append(1)
    time.sleep(0.5)
    print("told", len(times))
    sys.stdout.flush()
    os._exit(143)
signal.signal(signal.SIGTERM, told)
print("ready")
sys.stdout.flush()
time.sleep(100)
"""
    process = start(what, notice_s=0.0)
    seen = ""
    deadline = time.monotonic() + 60
    while seen.count("ready") < 3 and time.monotonic() < deadline:
        seen += process.stdout.readline()
    os.kill(process.pid, signal.SIGTERM)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 143
    assert sorted(out.splitlines()) == ["[0] told 1", "[1] told 1", "[2] told 1"]


SAVES = """
def save(*_):
    (folder / f"saved-{{rank}}").touch()
    os._exit(143)
folder = Path({folder!r})
signal.signal(signal.SIGTERM, save)
(folder / f"ready-{{rank}}").write_text(str(os.getpid()))
time.sleep(100)
"""


def seen(folder, names: str, count: int) -> list:
    """Returns the paths of that many files as soon as they are there."""
    deadline = time.monotonic() + 60
    while len(paths := list(folder.glob(names))) < count:
        assert time.monotonic() < deadline, paths
        time.sleep(0.02)

    return paths


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_workers_save_and_end_when_the_launcher_is_killed(start, tmp_path, number):
    process = start(SAVES.format(folder=str(tmp_path)))
    seen(tmp_path, "ready-?", 3)
    os.kill(process.pid, number)
    assert process.wait(timeout=60) == -number
    seen(tmp_path, "saved-?", 3)


def test_a_worker_that_finds_no_descriptors_ends_those_that_were_started(
    start, tmp_path
):
    plugin = tmp_path / "worker.py"
    plugin.write_text(WORKER.format(what=SAVES.format(folder=str(tmp_path))))
    script = """
import resource, subprocess, sys
from tfasr import cli
# Each worker takes two of them, and five more while it starts.
subprocess.Popen(["true"]).wait()
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
sys.argv[0] = "tfasr"
cli.main()
"""
    words = ["launch", "-n", "9", "--", "train", "--import", str(plugin)]
    words += ["--shard_dir", str(tmp_path), "--run_dir", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "ulimit -n" in last
    assert re.search(r"Worker [1-8]\b", last)
    assert "Traceback" not in done.stderr
    assert not [
        p for p in tmp_path.glob("ready-?") if Path(f"/proc/{p.read_text()}").exists()
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "2"], "the train command after --"),
        (["-n", "2", "--", "report"], "the train command after --"),
        (["-n", "0", "--", "train"], "at least 1 worker"),
        (["-n", "2", "--", "train", "--rank=1"], "Received: --rank=1. Leave it out"),
    ],
)
def test_what_cannot_be_launched_is_refused(words, said, capsys):
    from tfasr import cli

    arguments = cli.parse(["tfasr", "launch", *words])
    assert cli.run(arguments) == 2
    assert said in capsys.readouterr().err
