import contextlib
import copy
import hashlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reports.conftest import ledger_of
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import EVENTS_FILE, HEARTBEAT_FILE
from tfasr.ledger import timeline as writers
from tfasr.ledger.events import (
    LEDGER_FORMAT,
    Ledger,
    last_value,
    ledger_covers,
    read_events,
    read_ledger,
)
from tfasr.ledger.timeline import Timeline
from tfasr.tta.run import load_run, read_metrics

# Writes steps without end; prints one number once a step is surely written.
WRITER = """
import sys
from tfasr.ledger.events import Ledger
ledger = Ledger(sys.argv[1])
step = 0
while True:
    step += 1
    ledger.event("train_step", {"loss": 1.0}, step=step)
    print(step, flush=True)
"""


@pytest.fixture
def killed_run(tmp_path):
    """A run whose process was killed by SIGKILL while it wrote, and the last step it
    reported.
    """
    repository = str(Path(__file__).parents[1])
    path = os.pathsep.join([repository, os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    ) as process:
        reported = 0
        while reported < 200:
            reported = int(process.stdout.readline())

        with pytest.raises(UsageError, match="Another process"):
            Ledger(tmp_path)

        process.send_signal(signal.SIGKILL)
        *_, last = [reported, *map(int, process.stdout.read().split())]
        assert process.wait() == -signal.SIGKILL

    return tmp_path, last


def test_events_survive_a_kill(killed_run):
    run_dir, reported = killed_run
    steps = [event["metadata"]["step"] for event in read_events(run_dir)]

    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= reported


def test_the_next_session_continues_a_killed_ledger(killed_run):
    run_dir, reported = killed_run
    steps = [event["metadata"]["step"] for event in read_events(run_dir)]

    ledger = Ledger(run_dir, session=1)
    assert abs(ledger.alive_until_ms / 1000 - time.time()) < 3600

    ledger.begin_session(None)
    ledger.close()

    events = read_events(run_dir)

    assert len(events) == len(steps) + 1
    assert events[-1]["metadata"]["session"] == 1
    assert events[-1]["value"]["alive_until_ms"] >= events[-2]["time_ms"] - 2000


def test_a_cut_line_is_left_out_and_repaired_on_reopening(tmp_path):
    (tmp_path / EVENTS_FILE).write_text('{"key": "a", "time_ms": 1}\n{"key": "b", "ti')
    assert [event["key"] for event in read_events(tmp_path)] == ["a"]

    ledger = Ledger(tmp_path, session=1)
    ledger.event("c")
    ledger.close()

    lines = (tmp_path / EVENTS_FILE).read_text().splitlines()

    assert [json.loads(line)["key"] for line in lines] == ["a", "c"]


def test_a_closed_ledger_lets_the_next_process_write(tmp_path):
    Ledger(tmp_path).close()
    Ledger(tmp_path).close()


def test_two_ledgers_in_one_process_are_refused_too(tmp_path):
    ledger = Ledger(tmp_path)

    with pytest.raises(UsageError, match="another --run_dir"):
        Ledger(tmp_path)

    ledger.close()


def test_an_event_is_one_line_with_mllogs_keys_and_our_two(tmp_path):
    ledger = Ledger(tmp_path, session=2)
    ledger.event("eval_accuracy", 0.25, epoch_num=3)
    with ledger.interval("decode", epoch_num=3):
        pass

    ledger.close()

    point, start, stop = read_events(tmp_path / EVENTS_FILE)

    assert set(point) == {
        "namespace",
        "time_ms",
        "event_type",
        "key",
        "value",
        "metadata",
    }
    assert point["key"] == "eval_accuracy"
    assert point["value"] == 0.25
    assert point["event_type"] == "POINT_IN_TIME"
    assert point["metadata"]["epoch_num"] == 3
    assert point["metadata"]["session"] == 2
    assert (start["key"], start["event_type"]) == ("decode_start", "INTERVAL_START")
    assert (stop["key"], stop["event_type"]) == ("decode_stop", "INTERVAL_END")
    assert stop["metadata"]["mono_s"] >= start["metadata"]["mono_s"]


def test_a_block_that_raises_leaves_its_interval_open(tmp_path):
    ledger = Ledger(tmp_path)
    with pytest.raises(KeyError), ledger.interval("decode"):
        raise KeyError

    ledger.close()
    assert [event["key"] for event in read_events(tmp_path)] == ["decode_start"]


def test_an_open_ledger_proves_that_it_is_alive(tmp_path):
    ledger = Ledger(tmp_path)
    assert ledger.alive_until_ms is None

    ledger.event("session_start")
    assert (tmp_path / HEARTBEAT_FILE).exists()

    ledger.close()


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / EVENTS_FILE).write_text(
        '{"key": "a", "time_ms": 1}\n[]\n{"key": "b"}\n\n'
    )

    with pytest.raises(ValueError, match="Line 2 "):
        read_events(tmp_path)


def test_a_folder_without_a_ledger_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="A run folder must hold events.jsonl"):
        read_events(tmp_path)


def test_an_events_wall_clock_is_now(tmp_path):
    ledger = Ledger(tmp_path)
    before = time.time()
    ledger.event("a")
    after = time.time()

    ledger.close()

    assert 1000 * before - 1 <= read_events(tmp_path)[0]["time_ms"] <= 1000 * after

    mono_s = read_events(tmp_path)[0]["metadata"]["mono_s"]
    assert mono_s == round(mono_s, 6)  # microseconds, which is what reports count in


@pytest.fixture
def ledger_of_targets(tmp_path):
    """The folder of a ledger that states its targets twice, then a text about them."""
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.event("targets", [["cer", 0.2]])
        ledger.event("targets", [["cer", 0.1]])
        ledger.event("comparability", {"targets": 3})

    return tmp_path


def test_events_of_a_new_ledger_are_of_its_first_session(ledger_of_targets):
    events = read_events(ledger_of_targets)

    assert [event["metadata"]["session"] for event in events] == [0, 0, 0]


def test_the_last_value_of_a_key_is_not_that_of_a_text_which_names_it(
    ledger_of_targets,
):
    assert last_value(ledger_of_targets, "targets") == [["cer", 0.1]]


def test_the_last_value_is_read_before_a_line_that_was_cut(ledger_of_targets):
    with (ledger_of_targets / EVENTS_FILE).open("a") as file:
        file.write('{"key": "targets", "time_ms": 1, "value": 4')

    assert last_value(ledger_of_targets, "targets") == [["cer", 0.1]]


def test_a_key_that_was_never_written_has_no_last_value(ledger_of_targets):
    assert last_value(ledger_of_targets, "seed") is None
    assert last_value(ledger_of_targets / "nowhere", "seed") is None


def test_the_last_value_is_found_among_lines_that_are_no_events(tmp_path):
    (tmp_path / EVENTS_FILE).write_text(
        '\n{"key": "seed", "time_ms": 1, "value": 7}\n["seed"]\n'
    )

    assert last_value(tmp_path, "seed") == 7


def test_a_process_without_an_event_gives_no_sign_of_life(tmp_path):
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.event("session_start")

    before = (tmp_path / HEARTBEAT_FILE).stat().st_mtime_ns
    os.utime(tmp_path / HEARTBEAT_FILE, ns=(before, before - 10**9))

    Ledger(tmp_path, session=1).close()

    with contextlib.closing(Ledger(tmp_path, session=1)) as ledger:
        assert ledger.alive_until_ms == (before - 10**9) // 10**6


def chained(lines):
    """Returns lines with the hashes that the ledger's documentation describes."""
    head = hashlib.blake2b(b"", digest_size=16).hexdigest()
    result = []
    for line in lines:
        text = line.rpartition(b',"chain":')[0] or line[:-1]
        head = hashlib.blake2b(head.encode() + text, digest_size=16).hexdigest()
        result.append(text + f',"chain":"{head}"}}'.encode())

    return b"\n".join(result) + b"\n"


def test_a_ledger_of_a_newer_format_is_refused_and_one_without_a_format_is_read(
    tmp_path,
):
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.begin_session(None)
        ledger.event("seed", 3)

    path = tmp_path / EVENTS_FILE

    content = path.read_bytes()
    written = f'"ledger_format": {LEDGER_FORMAT}'.encode()

    assert written in content

    for changed in (content, content.replace(b", " + written, b"")):
        path.write_bytes(chained(changed.splitlines()))

        assert last_value(tmp_path, "seed") == read_events(tmp_path)[-1]["value"] == 3

    path.write_bytes(
        content.replace(written, f'"ledger_format": {LEDGER_FORMAT + 1}'.encode())
    )

    for read in (read_events, lambda folder: last_value(folder, "seed")):
        with pytest.raises(
            UsageError, match=rf"version {LEDGER_FORMAT + 1} .* Update it"
        ):
            read(tmp_path)


# A ledger shows that each of its lines is whole and in its place.


@pytest.fixture
def written(tmp_path):
    """A ledger of eight lines and its file's content."""
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.begin_session(None)
        for step in range(1, 7):
            ledger.event("train_step", {"loss": 1.5}, step=step)

        ledger.event("tracked_stats", {"cer": 0.15, "loss": math.nan}, epoch_num=1)

    return tmp_path, (tmp_path / EVENTS_FILE).read_bytes()


def test_each_line_ends_with_the_hash_of_all_up_to_it(written):
    run_dir, content = written
    assert content == chained(content.splitlines())

    last = json.loads(content.splitlines()[-1])

    assert [*last][-1] == "chain"
    assert load_run(run_dir).ledger_hash == last["chain"]


def test_every_single_byte_is_looked_at(written):
    run_dir, content = written
    keys = [event["key"] for event in read_events(run_dir)]
    path = run_dir / EVENTS_FILE

    for place in range(len(content)):
        line = content.count(b"\n", 0, place) + 1
        for byte in (content[place] ^ 1, 0):
            path.write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
            try:
                ledger = read_ledger(run_dir)
            except UsageError as error:
                # A first line whose hash is gone passes for one of a ledger of format
                # 1.
                named = [
                    f"Line {line} ",
                    *(["Line 2 ", "version 3"] if line == 1 else []),
                ]
                assert any(text in str(error) for text in named)  # noqa: PT017

                continue

            if (place + 1) % 512 == 0 and content[place - 1 : place] == b"\n":
                # A disk may lose such a line's first sector: the file is cut there.
                continue

            # What a crash may leave: the last line has no end, or ends in zeros.
            assert line == 8
            assert ledger.cut is True
            assert [event["key"] for event in ledger.events] == keys[:-1]
            assert byte == 0 or place == len(content) - 1


def test_every_length_is_a_ledger_that_a_crash_cut(written):
    run_dir, content = written
    events = read_events(run_dir)
    for length in range(len(content)):
        (run_dir / EVENTS_FILE).write_bytes(content[:length])

        whole = content[:length].count(b"\n")
        ledger = read_ledger(run_dir)

        assert ledger.events == events[:whole]
        assert ledger.cut == (
            content[:length] != b"" and content[length - 1 : length] != b"\n"
        )


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("removed", lambda lines: lines[:3] + lines[4:], 4),
        ("the first removed", lambda lines: lines[1:], 1),
        ("doubled", lambda lines: lines[:4] + lines[3:], 5),
        ("swapped", lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4),
        (
            "a line of another ledger",
            lambda lines: [*lines[:5], chained(lines[5:6])[:-1]],
            6,
        ),
        ("an empty line", lambda lines: [*lines[:5], b"", *lines[5:]], 6),
        (
            "a score improved",
            lambda lines: [*lines[:-1], lines[-1].replace(b"0.15", b"0.05")],
            8,
        ),
        (
            "without hashes",
            lambda lines: [re.sub(rb',"chain".*', b"}", one) for one in lines],
            1,
        ),
    ],
)
def test_lines_that_are_not_as_they_were_are_named_and_never_cut(
    written, name, change, line
):
    run_dir, content = written
    path = run_dir / EVENTS_FILE
    changed = b"\n".join(change(content.splitlines())) + b"\n"

    path.write_bytes(changed)

    for read in (read_events, load_run, lambda folder: Ledger(folder, session=1)):
        with pytest.raises(UsageError, match=rf"Line {line} .*{EVENTS_FILE}"):
            read(run_dir)

    assert path.read_bytes() == changed


def test_a_ledger_of_an_older_format_goes_on_with_hashes(tmp_path):
    old = b'{"key": "session_start", "time_ms": 1}\n{"key": "seed", "time_ms": 2, "value": 1}\n'
    path = tmp_path / EVENTS_FILE

    path.write_bytes(old)

    assert read_ledger(tmp_path).chain is None

    for session in (1, 2):
        with contextlib.closing(Ledger(tmp_path, session=session)) as ledger:
            ledger.begin_session(0)

    events = read_events(tmp_path)
    assert [event["key"] for event in events] == [
        "session_start",
        "seed",
        *["session_start"] * 2,
    ]

    path.write_bytes(path.read_bytes().replace(b'"value": 1', b'"value": 2'))

    with pytest.raises(UsageError, match="Line 3 "):
        read_events(tmp_path)


@contextlib.contextmanager
def largest_file(size):
    """Lets this process write no file beyond a size, as a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_line_that_found_no_room_is_taken_back(tmp_path):
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.event("seed", 1)

        with largest_file((tmp_path / EVENTS_FILE).stat().st_size + 20):
            for _ in range(2):
                with pytest.raises(OSError, match=EVENTS_FILE):
                    ledger.event("seed", 2)

        assert read_ledger(tmp_path).cut

        ledger.event("seed", 3)

    assert [event["value"] for event in read_events(tmp_path)] == [1, 3]


INTERRUPTED = """
import random, signal, sys
from tfasr.ledger.events import Ledger

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
ledger, written, interrupted = Ledger(sys.argv[1]), 0, 0
while written < 500 or interrupted < 500:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 2e-3))
        while True:
            ledger.event("train_step", {"loss": 1.0})
            written += 1
    except KeyboardInterrupt:
        interrupted += 1
print(written)
"""


def test_a_signal_within_an_event_leaves_a_whole_ledger(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, tmp_path]
    written = int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    assert len(read_events(tmp_path)) >= written


def test_a_fork_writes_nothing(tmp_path):
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.event("seed", 1)
        if not (child := os.fork()):
            ledger.event("seed", 2)
            ledger.sync()
            ledger.close()
            os._exit(0)

        assert os.waitpid(child, 0)[1] == 0

        ledger.event("seed", 3)

    assert [event["value"] for event in read_events(tmp_path)] == [1, 3]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_ledger_that_is_taken_away_is_missed(tmp_path, replaced):
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.event("seed", 1)
        ledger.sync()
        (tmp_path / EVENTS_FILE).unlink()

        if replaced:
            (tmp_path / EVENTS_FILE).touch()

        ledger.event("seed", 2)

        with pytest.raises(
            RunError, match=rf"{EVENTS_FILE} .*removed, replaced or cut"
        ):
            ledger.sync()


# Ledgers that nobody vouches for: a clear error that names file and line, never a
# traceback.


def forged(run_dir, key, /, **changes):
    """Writes a run of which the first event of a key is changed; returns the event's line."""
    ledger = ledger_of([0.5, 0.1, 0.1])
    index = [event["key"] for event in ledger.events].index(key)
    ledger.events[index] |= changes
    ledger.write(run_dir)

    return index + 1


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("init_start", {"metadata": [1]}),
        ("init_start", {"metadata": "x"}),
        ("init_start", {"key": 7}),
        ("init_start", {"key": ["init_start"]}),
        ("epoch_start", {"metadata": {"epoch_num": {}, "session": 0, "mono_s": 52.0}}),
        ("epoch_start", {"metadata": {"session": "a", "mono_s": 52.0}}),
        ("targets", {"value": [["cer"]]}),
        ("targets", {"value": "cer"}),
        ("targets", {"value": ["cer", ["cer", "low"]]}),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_by_file_and_line(tmp_path, key, changes):
    line = forged(tmp_path / "bad", key, **changes)

    with pytest.raises(
        UsageError, match=rf"In line {line} of .*bad/events\.jsonl .* must be"
    ):
        load_run(tmp_path / "bad")

    with pytest.raises(UsageError, match="must be"):
        report([tmp_path / "bad"])

    ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "good")
    shown = report([tmp_path])

    assert "bad is left out" in " ".join(shown.split())
    assert "good" in shown


def test_lines_nested_too_deeply_are_refused(tmp_path):
    ledger_of([0.5, 0.1, 0.1]).write(tmp_path)
    deep = (
        '{"key": "targets", "time_ms": 1, "value": '
        + "[" * 100_000
        + "]" * 100_000
        + "}\n"
    )
    path = tmp_path / "events.jsonl"

    path.write_text(deep + path.read_text())

    with pytest.raises(UsageError, match=r"events\.jsonl is not an event"):
        report([tmp_path])


@pytest.mark.parametrize(
    "text", ['{"system": ', "[]", "\x00", '{"system": {"packages": "x"}}']
)
def test_a_damaged_run_json_is_named(tmp_path, text):
    ledger_of([0.5, 0.1, 0.1]).write(tmp_path)
    (tmp_path / "run.json").write_text(text)

    with pytest.raises(UsageError, match=r"run\.json must"):
        report([tmp_path])


@pytest.mark.parametrize(
    "target", [{"cer": 10}, {"cer": -0.1}, {"foo": 0.1}, {"cer": "low"}]
)
def test_a_target_that_cannot_be_reached_is_refused_as_on_the_command_line(
    tmp_path, target
):
    run = load_run(ledger_of([0.5, 0.1, 0.1]).write(tmp_path))

    with pytest.raises(
        UsageError, match="fraction between 0 and 1|metric must be one of"
    ):
        run.time_to_accuracy(**target)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_no_forged_ledger_ends_in_a_traceback(tmp_path_factory, data):
    ledger = ledger_of([0.5, 0.1, 0.1])
    ledger.events = copy.deepcopy(ledger.events)
    for _ in range(data.draw(st.integers(1, 3))):
        event = data.draw(st.sampled_from(ledger.events))
        inner = [
            one for one in (event["value"], event["metadata"]) if isinstance(one, dict)
        ]
        place = data.draw(st.sampled_from([event, *inner]))

        if place:
            place[data.draw(st.sampled_from(sorted(place)))] = data.draw(values)

    folder = tmp_path_factory.mktemp("forged")
    lines = "".join(json.dumps(event) + "\n" for event in ledger.events)
    (folder / "events.jsonl").write_text(lines)

    try:
        assert report([folder], policy="paper")
    except UsageError as error:
        assert str(error)


def test_a_wrong_kind_is_found_among_all_right_ones(tmp_path):
    ledger = ledger_of([0.5, 0.1, 0.1])
    ledger.events[1]["metadata"] = None
    ledger.events[5]["metadata"] = ["session"]

    with pytest.raises(UsageError, match="In line 6 .* metadata must be an object"):
        load_run(ledger.write(tmp_path))


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("global_batch_size", 16.0, "a whole number"),
        ("num_replicas", True, "a whole number"),
        ("opt_name", 3, "text"),
        ("targets", [["cer", True]], "pairs of a metric and a number"),
        ("targets", [["cer", 1e400]], "pairs of a metric and a number"),
        ("targets", [[1, 0.1]], "pairs of a metric and a number"),
        ("targets", [["cer", 0.1, 0.2]], "pairs of a metric and a number"),
    ],
)
def test_facts_are_of_their_kind_or_absent(tmp_path, key, value, kind):
    def run_with(fact):
        ledger = LedgerBuilder().begin().event(key, fact).epoch(1, 0.5).end()
        return ledger.write(tmp_path)

    assert load_run(run_with(None)).fact(key) is None
    with pytest.raises(UsageError, match=f"value of {key} must be .*{kind}"):
        load_run(run_with(value))


def test_a_long_value_is_shown_in_part_and_a_time_is_a_number(tmp_path):
    ledger = ledger_of([0.5, 0.1, 0.1])
    good = copy.deepcopy(ledger.events)
    for text, shown in (("x" * 58, f"'{'x' * 58}'"), ("x" * 59, f"'{'x' * 58}…")):
        ledger.events[0]["metadata"]["session"] = text

        with pytest.raises(
            UsageError, match=rf"In line 1 .*whole number, not {shown}\. Leave"
        ):
            load_run(ledger.write(tmp_path))

    ledger.events = copy.deepcopy(good)
    for time_ms in ([1], "1", True, None, 10**16, -(10**16)):
        ledger.events[2]["time_ms"] = time_ms

        with pytest.raises(
            UsageError, match="In line 3 .* time_ms must be a finite number up to 1e.15"
        ):
            load_run(ledger.write(tmp_path))

    for time_ms in (10**15, -(10**15), 1.5):
        ledger.events[2]["time_ms"] = time_ms

        assert load_run(ledger.write(tmp_path)).wall_s == 8.0

    ledger.events = copy.deepcopy(good)
    ledger.events[3]["metadata"]["mono_s"] = "soon"

    with pytest.raises(
        UsageError, match=rf"{tmp_path}/events\.jsonl: mono_s must be a finite"
    ):
        load_run(ledger.write(tmp_path))


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        (
            "epoch_start",
            {"metadata": {"epoch_num": 10**400, "session": 0, "mono_s": 52.0}},
        ),
        ("tracked_stats", {"value": {"cer": 1e308}}),
        ("session_start", {"value": {"resumed_from_step": 10**400}}),
    ],
)
def test_numbers_that_no_run_has_are_refused_by_file_and_line(tmp_path, key, changes):
    line = forged(tmp_path / "bad", key, **changes)

    with pytest.raises(
        UsageError, match=rf"In line {line} of .*bad/events\.jsonl .* must be"
    ):
        report([tmp_path / "bad"])


@pytest.mark.parametrize(
    "name", ["utterances", "audio_s", "frames", "padded_frames", "train_s"]
)
def test_amounts_that_no_step_has_count_as_unknown(tmp_path, name):
    ledger = ledger_of([0.5, 0.1, 0.1])
    for event in ledger.events:
        if event["key"] == "train_step":
            event["value"][name] = 1e308

    assert report([ledger.write(tmp_path / "run")], policy="paper")


@pytest.mark.parametrize("metrics", [[1], [{}], {"a": 1}, {"a": {}, "b": []}, "cer"])
def test_metrics_that_are_no_descriptions_are_refused(tmp_path, metrics):
    run_dir = LedgerBuilder().begin().event("metrics", metrics).end().write(tmp_path)

    assert read_metrics(run_dir) == {}
    with pytest.raises(UsageError, match="value of metrics must be"):
        load_run(run_dir)


def second_writer(events):
    return writers.second_writer(Timeline(events))


def resumed(with_mono=True):
    """A run of three sessions."""
    ledger = LedgerBuilder(with_mono=with_mono).begin().epoch(1, 0.5).checkpoint()
    ledger.step().resume(down_s=5, from_step=2).epoch(2, 0.4)
    return ledger.resume(down_s=5, from_step=None).epoch(1, 0.5).end()


def test_one_process_after_the_other_is_one_at_a_time():
    assert second_writer(resumed().events) is None
    assert second_writer(resumed(with_mono=False).events) is None
    assert second_writer([]) is None


def test_the_evidence_of_two_writers_names_the_session():
    twice = [*LedgerBuilder().begin().events, *LedgerBuilder().begin().events]
    assert "session 0" in second_writer(twice)


def test_the_evidence_of_a_process_that_goes_on_names_both_sessions():
    events = resumed().events
    assert "of session 0 follows one of session 2" in second_writer(
        [*events, events[1]]
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.booleans(), min_size=12, max_size=40))
def test_any_interleaving_of_two_runs_is_noticed(takes):
    one, other = (
        resumed().events,
        LedgerBuilder().begin().epoch(1, 0.3, steps=9).end().events,
    )
    left = [list(one), list(other)]
    mixed = [left[take].pop(0) for take in takes if left[take]]
    mixed += left[0] + left[1]

    assert second_writer(mixed) is not None


def test_the_evidence_names_its_event():
    begun = LedgerBuilder().begin().events
    assert second_writer([*begun, *begun]).startswith(f"event {len(begun) + 1} ")


def test_the_evidence_names_steps_that_go_back():
    steps = LedgerBuilder().begin().step().step().events
    result = second_writer([*steps[:-2], steps[-1], steps[-2]])

    assert result == f"event {len(steps)} is step 1 and follows step 2"


# A thousand lines, as a run has them: nothing that is changed, removed or moved passes.


@pytest.fixture(scope="module")
def long_ledger(tmp_path_factory):
    """A ledger of a thousand lines: its folder, its bytes and its mark."""
    folder = tmp_path_factory.mktemp("long")
    with contextlib.closing(Ledger(folder)) as ledger:
        ledger.begin_session(None)
        for step in range(1, 1000):
            ledger.event("train_step", {"loss": 1.5, "train_s": 0.05}, step=step)

        mark = ledger.mark()

    return folder, (folder / EVENTS_FILE).read_bytes(), mark


def noticed(folder, content, mark, changed):
    """Whether a changed ledger is refused, or shows that it lacks its end."""
    (folder / EVENTS_FILE).write_bytes(changed)
    try:
        ledger = read_ledger(folder)
    except UsageError:
        return True

    # The legal torn tail: a part of the events, and no longer the lines that a mark
    # covers.
    whole = changed[: changed.rfind(b"\n") + 1]
    shorter = content.startswith(whole) and len(ledger.events) < 1000
    return shorter and not ledger_covers(folder, mark)


def test_a_zero_within_the_last_line_is_no_torn_tail(long_ledger):
    folder, content, mark = long_ledger

    for place in range(content[:-1].rfind(b"\n") + 1, len(content) - 1):
        assert noticed(
            folder, content, mark, content[:place] + b"\0" + content[place + 1 :]
        ), place


@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.long)])
def test_no_change_of_a_thousand_lines_passes(long_ledger, every):
    folder, content, mark = long_ledger
    lines = content.splitlines(keepends=True)

    assert len(lines) == 1000

    for place in range(0, len(content), every * (40 if every > 1 else 1)):
        other = bytes([content[place] ^ (1 + place % 255)])
        changed = content[:place] + other + content[place + 1 :]

        assert noticed(folder, content, mark, changed), f"byte {place}"
        assert noticed(folder, content, mark, content[:place] + content[place + 1 :])
        assert noticed(folder, content, mark, content[:place])

    for n in range(0, 999, every // 10 or 1):
        without = [*lines[:n], *lines[n + 1 :]]
        doubled = [*lines[: n + 1], *lines[n:]]
        swapped = [*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]]

        for changed in (without, doubled, swapped):
            assert noticed(folder, content, mark, b"".join(changed)), f"line {n + 1}"

    (folder / EVENTS_FILE).write_bytes(content)
    assert ledger_covers(folder, mark)
