"""A study's sealed plan and its list of starts, written and compared with the runs' ledgers."""

import contextlib
import json
import shutil

import pytest

from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE
from tfasr.ledger.declared import (
    DECLARED_VARIABLE,
    SEALED_FILE,
    STARTS_FILE,
    Seen,
    Starts,
    canonical,
    check_study,
    declaration,
    sealed_folder,
    sha256,
    study_sentence,
)
from tfasr.ledger.events import Ledger, ledger_mark, read_events


def plan(*seeds):
    """A study's plan of one experiment with these seeds."""
    runs = [{"experiment": "a", "seed": n, "folder": f"runs/a/seed_{n}"} for n in seeds]
    return {"runs": runs, "study": {"experiments": ["a"]}}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Returns a function that starts a training as a study does; it trains so many steps."""

    def train(seed, steps=2, *, seeds=(1, 2), watched=True, ended=True):
        run_dir = tmp_path / "runs" / "a" / f"seed_{seed}"
        with contextlib.closing(Starts(tmp_path, lambda: plan(*seeds))) as starts:
            for name, value in starts.start(
                "a", seed, Seen(ledger_mark(run_dir))
            ).items():
                monkeypatch.setenv(name, value)

            run_dir.mkdir(parents=True, exist_ok=True)
            past = read_events(run_dir) if (run_dir / EVENTS_FILE).exists() else []
            session = sum(event["key"] == "session_start" for event in past)

            with contextlib.closing(Ledger(run_dir, session)) as ledger:
                ledger.begin_session(None, declaration([]))
                ledger.event("seed", seed)
                for step in range(1, steps + 1):
                    ledger.event("train_step", {"loss": 1.0}, step=step)

                if watched:
                    starts.begun("a", seed, Seen(ledger_mark(run_dir)))

            if ended:
                starts.end("a", seed, Seen(ledger_mark(run_dir)), 0)

        return run_dir

    return train


def test_a_plan_is_sealed_once_and_named_by_list_and_ledgers(tmp_path, begun):
    run_dir = begun(1)
    begun(2)

    content = (tmp_path / SEALED_FILE).read_bytes()

    assert content == canonical(plan(1, 2))

    events = read_events(tmp_path / STARTS_FILE)
    keys = [event["key"] for event in events]

    assert keys == ["plan", *["start", "begun", "end"] * 2]
    assert events[0]["value"]["sha256"] == sha256(content)

    declared = read_events(run_dir)[0]["value"]["declared"]
    assert declared["plan"] == sha256(content)

    study = check_study(tmp_path)

    assert (study.declared, study.found, study.problems) == (2, 2, [])
    assert study.sentence == "Sealed plan: declared 2, found 2."
    assert sealed_folder(run_dir) == tmp_path


def test_a_process_that_no_study_started_declares_nothing(monkeypatch):
    monkeypatch.delenv(DECLARED_VARIABLE, raising=False)

    assert declaration([]) is None


@pytest.mark.parametrize(("watched", "ended"), [(True, False), (False, True)])
def test_a_run_that_was_thrown_away_and_begun_again_is_seen(
    tmp_path, begun, watched, ended
):
    shutil.rmtree(begun(1, watched=watched, ended=ended))
    assert "a seed 1 is missing" in check_study(tmp_path).sentence

    begun(1)
    assert "a seed 1 was begun twice" in check_study(tmp_path).sentence


def test_a_start_that_trained_nothing_leaves_no_claim(tmp_path, begun):
    shutil.rmtree(begun(1, steps=0))
    assert check_study(tmp_path).waiting == ["a seed 1", "a seed 2"]

    begun(1)
    assert check_study(tmp_path).problems == []


def test_an_interrupted_run_goes_on(tmp_path, begun):
    begun(1, ended=False)
    begun(1)

    study = check_study(tmp_path)

    assert (study.found, study.waiting, study.problems) == (1, ["a seed 2"], [])


def test_more_seeds_are_an_amendment(tmp_path, begun):
    begun(1, seeds=(1,))
    begun(2)

    begun(2)

    assert sorted(path.name for path in tmp_path.glob("sealed*")) == [
        SEALED_FILE, "sealed_plan_2.json",
    ]  # fmt: skip

    study = check_study(tmp_path)

    assert (study.declared, study.found, study.problems) == (2, 2, [])
    assert len(study.amended) == 1
    assert study.amended[0].startswith("runs: ")


def test_a_run_copied_from_another_seed_is_not_the_studys(tmp_path, begun):
    first = begun(1)
    shutil.copytree(first, tmp_path / "runs" / "a" / "seed_2")

    assert "a seed 2 was started by another study" in check_study(tmp_path).sentence


def test_a_run_in_a_folder_of_another_name_is_extra(tmp_path, begun):
    first = begun(1)

    first.rename(first.with_name("seed_9"))

    sentence = check_study(tmp_path).sentence

    assert "a seed 1 is missing" in sentence
    assert "runs/a/seed_9 is extra" in sentence


@pytest.mark.parametrize("change", [b"", b"{}\n", b'{"runs":[]}\n'])
def test_a_changed_plan_is_named(tmp_path, begun, change):
    begun(1)
    (tmp_path / SEALED_FILE).write_bytes(change)

    with pytest.raises(UsageError, match="must be the plan that was sealed"):
        check_study(tmp_path)
    assert "NOT AS DECLARED" in study_sentence(tmp_path)


def test_a_canonical_value_is_written_in_one_way():
    assert canonical({"b": [1, 0.5], "a": "\u00e9"}) == b'{"a":"\\u00e9","b":[1,0.5]}\n'
    assert json.loads(canonical(plan(1))) == plan(1)
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical(float("nan"))
