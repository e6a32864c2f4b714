"""The demo on busy machines: its trainings wait, are repeated, or end early with the reason."""

import pytest

from tests.studies.test_quiet import BUSY, QUIET, write_run
from tfasr.commands import demo as commands
from tfasr.studies import quiet

TAKES_S = {"papers_recipe": 24.0, "fast_recipe": 12.0}


class Machine:
    """A machine on which trainings take some time, and lose a part of it."""

    def __init__(self, monkeypatch, parts, slower=1.0, now=QUIET):
        self.now_s = 0.0
        self.parts = iter(parts)
        self.slower = slower
        self.trained = []
        monkeypatch.setattr(commands, "_step", self.train)
        monkeypatch.setattr(commands.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(commands.time, "sleep", self.sleep)
        monkeypatch.setattr(
            quiet, "taken_now", lambda seconds: self.sleep(seconds) or now
        )

    def sleep(self, seconds):
        self.now_s += seconds

    def train(self, race, title, words, run_dir):
        self.now_s += TAKES_S[run_dir.parent.name] * self.slower
        self.trained.append(f"{run_dir.parent.name[:4]} {run_dir.name[-1]}")
        write_run(run_dir, next(self.parts, 0.0), 0.05)


@pytest.fixture
def groups(tmp_path):
    return [tmp_path / "runs" / name for name in commands.RECIPES]


def race(groups, seeds=4):
    folder = groups[0].parents[1]
    started = commands.Race(groups, folder / "shards", folder / "logs")
    commands.train_until_decided(started, range(1, seeds + 1))
    return started.runs


def test_on_a_quiet_machine_the_recipes_take_turns(monkeypatch, groups):
    machine = Machine(monkeypatch, [])
    runs = race(groups)

    assert [run.parent.name[:4] for run in runs] == ["pape", "fast", "fast", "pape"] * 2
    assert len(machine.trained) == 8


def test_a_disturbed_run_is_trained_again_if_there_is_time(monkeypatch, groups, capsys):
    machine = Machine(monkeypatch, [0.0, 0.0, 0.5])
    runs = race(groups)

    assert machine.trained[:5] == ["pape 1", "fast 1", "fast 2", "fast 2", "pape 2"]
    assert len(runs) == 8
    assert (groups[0].parents[1] / "disturbed" / "fast_recipe-seed_2").is_dir()
    assert (
        "The machine took 50 % of the run: it is trained again."
        in capsys.readouterr().out
    )


def test_on_a_busy_machine_it_ends_in_time_and_says_why(monkeypatch, groups, capsys):
    machine = Machine(monkeypatch, [0.6] * 20, slower=3.0, now=BUSY)
    runs = race(groups)

    assert machine.now_s <= commands.TRAININGS_S + commands.WAITS_S
    assert [run.name for run in runs] == ["seed_1"] * 2 + ["seed_2"] * 2
    text = capsys.readouterr().out
    assert "disturbed during 4 of 4 runs, so the demo ends after 2 of 4 seeds" in text
    assert "tfasr doctor" in text


def test_seeds_are_added_until_it_is_decided(monkeypatch, groups, capsys):
    machine = Machine(monkeypatch, [], slower=0.9)
    # Undecided at each look, as both reach the target in the same epoch.
    assert len(race(groups, seeds=8)) == 16
    assert machine.now_s <= commands.TRAININGS_S
    assert capsys.readouterr().out == ""


def test_it_ends_as_soon_as_it_is_decided(monkeypatch, groups):
    looks = iter([True])
    monkeypatch.setattr(commands, "_decided", lambda race: next(looks))
    Machine(monkeypatch, [])

    assert len(race(groups, seeds=8)) == 8


def test_seeds_are_added_only_within_the_limit(monkeypatch, groups, capsys):
    machine = Machine(monkeypatch, [], slower=1.5)

    assert len(race(groups, seeds=8)) == 8
    assert machine.now_s <= commands.TRAININGS_S
    assert "No time for more than 4 runs of each recipe" in capsys.readouterr().out


def test_it_looks_at_the_host_first(monkeypatch, capsys):
    for now, words in (
        (QUIET, "is quiet: others take 2 %"),
        (BUSY, "is busy: others take 70 %"),
    ):
        monkeypatch.setattr(quiet, "taken_now", lambda seconds, now=now: now)
        commands._look_at_host()
        assert words in capsys.readouterr().out


def test_a_slow_machine_without_disturbances_trains_all_seeds(monkeypatch, groups):
    machine = Machine(monkeypatch, [], slower=3.0)

    assert len(race(groups)) == 8
    assert machine.now_s > commands.TRAININGS_S
