import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.kit.files import HOST_FILE
from tfasr.ledger.timeline import Timeline
from tfasr.tta.host import (
    COUNTERS,
    HOST_COLUMNS,
    disturbance,
    host_use,
    read_host_file,
    taken_over_time,
)

STEPS = 60
INIT_S = 5.0


class Machine:
    """A machine whose counters a test moves, and the ``host.csv`` that a sampler would
    write.
    """

    def __init__(self, mono_s=50.0):
        self.mono_s = mono_s
        self.values = dict.fromkeys(COUNTERS, 0.0)
        self.values["mhz"] = 2600.0
        self.lines = [",".join(HOST_COLUMNS)]
        self.look()

    def look(self):
        cells = [
            "" if value is None else f"{value:.3f}" for value in self.values.values()
        ]
        self.lines.append(
            ",".join(["1700000000000", "0", f"{self.mono_s:.6f}", *cells])
        )

    def second(self, seconds=1.0, **increases):
        self.mono_s += seconds
        for name, increase in increases.items():
            self.values[name] += increase

        self.look()

    def write(self, folder):
        (folder / HOST_FILE).write_text("\n".join(self.lines) + "\n")


def run_of_steps(count=STEPS):
    """A run of steps of a second each."""
    run = LedgerBuilder().begin(init_s=INIT_S)
    for _ in range(count):
        run.step(1.0)

    return Timeline(run.event("run_stop").events)


def use_of(folder, machine, timeline=None):
    machine.write(folder)
    return host_use(read_host_file(folder), timeline or run_of_steps())


def second_by_second(machine, count=int(INIT_S) + STEPS, **increases):
    """Counters that rise by the same amounts in every second of a run."""
    for _ in range(count):
        machine.second(**increases)


def test_a_quiet_machine_gives_all(tmp_path):
    machine = Machine()
    second_by_second(machine, ran_s=2.0, busy_s=2.0)

    use = use_of(tmp_path, machine)

    assert use.share == 1.0
    assert not use.disturbed
    assert use.undisturbed_s == pytest.approx(STEPS)
    assert use.unknown_s == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("cause", "increases"),
    [
        # Two processors of which the hypervisor takes half.
        ("steal", {"ran_s": 1.0, "busy_s": 1.0, "stolen_s": 1.0}),
        # Two threads under a quota of one processor.
        ("quota", {"ran_s": 1.0, "busy_s": 1.0, "waited_s": 1.0, "throttled_s": 1.0}),
        # Two threads and two busy programs on two processors.
        ("other programs", {"ran_s": 1.0, "busy_s": 2.0, "waited_s": 1.0}),
    ],
)
def test_half_of_the_machine_is_half_of_it_and_the_cause_is_named(
    tmp_path, cause, increases
):
    machine = Machine()
    second_by_second(machine, **increases)

    use = use_of(tmp_path, machine)

    assert use.share == pytest.approx(0.5)
    assert use.undisturbed_s == pytest.approx(STEPS / 2)
    assert cause in use.causes()[0][0]
    assert cause in disturbance(use)
    assert "about 30 s instead of 60 s" in disturbance(use)


def test_a_stopped_process_is_told_from_a_busy_machine(tmp_path):
    machine = Machine()
    second_by_second(machine, int(INIT_S) + 20, ran_s=2.0, busy_s=2.0)
    machine.second(20.0)
    second_by_second(machine, 20, ran_s=2.0, busy_s=2.0)

    use = use_of(tmp_path, machine)

    assert use.stopped_s == pytest.approx(20.0)
    assert "stop" in use.causes()[0][0]
    assert use.undisturbed_s == pytest.approx(40.0)


def test_a_run_that_lacks_memory_waits_for_it_and_for_the_disk_and_for_the_kernel(
    tmp_path,
):
    machine = Machine()
    second_by_second(
        machine,
        ran_s=0.8,
        kernel_s=0.2,
        busy_s=0.8,
        waited_s=0.0,
        memory_stalled_s=0.1,
        io_stalled_s=0.3,
        major_faults=100,
    )

    use = use_of(tmp_path, machine)

    assert use.low_memory_s == pytest.approx(0.6 * STEPS)
    assert use.share == pytest.approx(0.4)
    assert use.causes()[0][0] == "too little memory"


@pytest.mark.parametrize(
    "counters",
    [
        # Another program waited for memory.
        {"memory_stalled_s": 0.5, "major_faults": 0},
        # The run reads its data for the first time.
        {"memory_stalled_s": 0.0, "major_faults": 100},
    ],
)
def test_reading_files_and_waits_of_others_are_no_lack_of_memory(tmp_path, counters):
    machine = Machine()
    second_by_second(
        machine, ran_s=1.0, kernel_s=0.3, busy_s=1.0, io_stalled_s=0.5, **counters
    )

    assert use_of(tmp_path, machine).share == 1.0


def test_what_the_machine_took_over_time_adds_up_to_what_it_took(tmp_path):
    machine = Machine()
    second_by_second(machine, int(INIT_S) + 30, ran_s=2.0, busy_s=2.0)
    second_by_second(machine, 30, ran_s=1.0, busy_s=2.0, waited_s=1.0)
    machine.write(tmp_path)

    edges_s, taken = taken_over_time(
        read_host_file(tmp_path), run_of_steps(), bins=STEPS + int(INIT_S)
    )

    # The model is created before the initialisation.
    assert edges_s[[0, -1]].tolist() == [0.0, INIT_S + STEPS]
    assert taken["competed_s"][:34] == pytest.approx(0.0)
    assert taken["competed_s"][36:] == pytest.approx(0.5)
    assert not any(taken[name].any() for name in taken if name != "competed_s")


def test_only_what_was_before_a_target_counts(tmp_path):
    machine = Machine()
    second_by_second(machine, int(INIT_S) + 20, ran_s=2.0, busy_s=2.0)
    second_by_second(machine, 40, ran_s=1.0, busy_s=2.0, waited_s=1.0)
    machine.write(tmp_path)

    samples = read_host_file(tmp_path)

    assert host_use(
        samples, run_of_steps(), until_s=INIT_S + 20
    ).share == pytest.approx(1.0, abs=1e-3)
    assert host_use(
        samples, run_of_steps(), until_s=INIT_S + 20
    ).wall_s == pytest.approx(20.0)
    assert host_use(samples, run_of_steps()).share < 0.7


def test_more_threads_than_processors_are_no_disturbance(tmp_path):
    machine = Machine()
    second_by_second(machine, ran_s=2.0, busy_s=2.0, waited_s=6.0)

    assert use_of(tmp_path, machine).share == 1.0


def test_steal_is_shared_with_the_other_programs_that_it_hit(tmp_path):
    machine = Machine()
    second_by_second(machine, ran_s=0.5, busy_s=1.0, stolen_s=1.0)

    assert use_of(tmp_path, machine).stolen_s == pytest.approx(0.5 * STEPS)


def test_what_the_machine_does_not_offer_is_unknown_and_not_zero(tmp_path):
    machine = Machine()
    for name in ("stolen_s", "throttled_s", "waited_s", "memory_stalled_s", "mhz"):
        machine.values[name] = None

    second_by_second(machine, ran_s=1.0, busy_s=1.0)

    use = use_of(tmp_path, machine)

    unknown = (use.stolen_s, use.throttled_s, use.competed_s, use.low_memory_s)

    assert unknown == (None, None, None, None)
    assert use.slowest_mhz is None
    assert use.share == 1.0


def test_only_the_steps_count(tmp_path):
    machine = Machine()
    second_by_second(machine, int(INIT_S), ran_s=0.2, busy_s=2.0, waited_s=1.8)

    second_by_second(machine, STEPS, ran_s=2.0, busy_s=2.0)

    assert use_of(tmp_path, machine).share == pytest.approx(1.0, abs=0.01)


def test_seconds_without_samples_are_unknown(tmp_path):
    machine = Machine()
    second_by_second(machine, int(INIT_S) + 20, ran_s=2.0, busy_s=2.0)

    use = use_of(tmp_path, machine)

    assert use.wall_s == pytest.approx(20.0)
    assert use.unknown_s == pytest.approx(STEPS - 20.0)


def test_each_session_has_counters_of_its_own(tmp_path):
    run = LedgerBuilder().begin(init_s=0.0)
    for _ in range(10):
        run.step(1.0)

    run.checkpoint().resume(down_s=100.0, from_step=10)

    for _ in range(10):
        run.step(1.0)

    timeline = Timeline(run.event("run_stop").events)
    first = Machine()
    second_by_second(first, 10, ran_s=1.0, busy_s=2.0, waited_s=1.0)
    # The next process's counters begin at 0 again, on a clock of its own.
    second = Machine(mono_s=7.0)
    second_by_second(second, 10, ran_s=2.0, busy_s=2.0)
    of_second = [
        line.replace("1700000000000,0,", "1700000200000,1,")
        for line in second.lines[1:]
    ]
    (tmp_path / HOST_FILE).write_text("\n".join([*first.lines, *of_second]) + "\n")

    use = host_use(read_host_file(tmp_path), timeline)

    assert use.ran_s == pytest.approx(30.0)
    assert use.competed_s == pytest.approx(10.0)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "1,0",
        "1,x,60,1",
        "1,0,nan,1,1",
        "1,0,inf",
        "\x00",
        "1,0,55,1e400",
        "1,0,10.0",
    ],
)
def test_a_damaged_line_costs_itself(tmp_path, line):
    machine = Machine()
    second_by_second(machine, 20, ran_s=2.0, busy_s=2.0)
    machine.lines.insert(8, line)
    second_by_second(machine, int(INIT_S) + STEPS - 20, ran_s=2.0, busy_s=2.0)

    use = use_of(tmp_path, machine)

    assert use.ran_s == pytest.approx(2.0 * STEPS, rel=0.1)
    assert np.isfinite(use.share)


def test_a_run_without_the_file_is_unknown(tmp_path):
    assert read_host_file(tmp_path) == {}
    assert host_use({}, run_of_steps()) is None


SECONDS = st.floats(0.0, 4.0)


@given(
    st.lists(
        st.tuples(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS), min_size=2, max_size=40
    )
)
def test_shares_are_shares_whatever_the_counters_say(tmp_path_factory, seconds):
    folder = tmp_path_factory.mktemp("host")
    machine = Machine()
    for ran_s, waited_s, throttled_s, stolen_s, busy_s in seconds:
        machine.second(
            ran_s=ran_s,
            waited_s=waited_s,
            throttled_s=throttled_s,
            stolen_s=stolen_s,
            busy_s=busy_s,
        )

    use = use_of(folder, machine)
    if use is None:
        assert len(seconds) <= INIT_S

        return

    assert 0.0 <= use.share <= 1.0
    assert 0.0 <= use.undisturbed_s <= use.wall_s + 1e-9
    assert use.wall_s + use.unknown_s == pytest.approx(STEPS, abs=1e-4)
