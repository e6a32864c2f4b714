"""Checkpoint files: what is in them, which of them stay, and which one is found again."""

import contextlib
import errno
import json
import os
import shutil
import zipfile
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from tfasr.errors import RunError, UsageError
from tfasr.kit.files import PARTIAL_SUFFIX
from tfasr.ledger.events import Ledger
from tfasr.training.checkpoint import (
    TrainingState,
    damage,
    find_checkpoint,
    keep_as_best,
    newest_checkpoint,
    non_finite,
    read_state,
    restore,
    save_checkpoint,
    state_variables,
)

STATE = TrainingState(
    step=7, epoch=2, step_in_epoch=3, epoch_trained=True, history=[{"cer": 0.5}]
)


def small_model(units=2):
    # Named: the names of an optimizer's variables hold what a process counts else.
    layer = keras.layers.Dense(units, name="dense")
    model = keras.Sequential([keras.layers.Input((3,)), layer], name="small")
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def model():
    return small_model()


def fill(model, value):
    for variable in model.trainable_variables:
        variable.assign(np.full(variable.shape, value))


def saved(run_dir, model, *steps, keep=9):
    return [
        save_checkpoint(run_dir, model, TrainingState(step=step), keep)
        for step in steps
    ]


def names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 5, 10])
def test_as_many_checkpoints_are_kept_as_are_asked_for(model, tmp_path, keep):
    for count in range(1, 13):
        saved(tmp_path, model, count, keep=keep)
        kept = range(max(1, count - keep + 1), count + 1)
        assert names(tmp_path) == [f"step-{step:08d}.npz" for step in kept]


def test_a_checkpoint_that_the_ledger_does_not_cover_is_not_resumed_from(
    model, tmp_path, caplog
):
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        for step in (1, 2, 3):
            ledger.event("train_step", step=step)
            state = TrainingState(step=step)
            mark = ledger.mark()
            path = save_checkpoint(tmp_path, model, state, keep=9, ledger=mark)

        ledger.event("epoch_stop")

    keep_as_best(path)
    assert newest_checkpoint(tmp_path, set_aside=True) == path
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines[:2]))
    with contextlib.closing(Ledger(tmp_path, session=1)) as ledger:
        for _ in range(3):
            ledger.event("train_step", step=3)

    assert newest_checkpoint(tmp_path) == path  # it can still be evaluated
    assert read_state(newest_checkpoint(tmp_path, set_aside=True)).step == 2
    assert "step-00000003.npz.damaged" in names(tmp_path)
    assert f"{path} cannot be resumed from" in caplog.text
    (tmp_path / "events.jsonl").unlink()
    assert newest_checkpoint(tmp_path, set_aside=True) is None


def test_a_checkpoint_that_was_removed_before_its_evaluation_is_named(model, tmp_path):
    (path,) = saved(tmp_path, model, 1)
    shutil.rmtree(path.parent)
    with pytest.raises(RunError, match=path.name):
        keep_as_best(path)
    (again,) = saved(tmp_path, model, 2)  # the folder comes back
    keep_as_best(again)


def test_what_is_saved_is_what_is_restored(model, tmp_path):
    fill(model, 0.25)
    model.optimizer.momentums[0].assign(np.full((3, 2), 5.0))
    path = save_checkpoint(tmp_path, model, STATE, keep=1)
    other = small_model()
    assert restore(path, other) == read_state(path) == STATE
    for mine, theirs in zip(
        state_variables(model).items(), state_variables(other).items(), strict=True
    ):
        assert mine[0] == theirs[0]
        np.testing.assert_array_equal(mine[1].numpy(), theirs[1].numpy())

    assert TrainingState() == TrainingState(0, 1, 0, False, [])


def test_every_variable_has_a_name_of_its_own_by_its_place(model):
    found = state_variables(model)
    assert list(found)[:2] == ["0000 kernel", "0001 bias"]
    assert [int(name.split()[0]) for name in found] == list(range(len(found)))
    assert len({id(variable) for variable in found.values()}) == len(found)
    bare = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    assert list(state_variables(bare)) == ["0000 kernel", "0001 bias"]
    ownerless = SimpleNamespace(variables=[keras.Variable(1.0, name="alone")])
    assert list(state_variables(ownerless)) == ["0000 alone"]


@pytest.mark.parametrize(
    ("keep", "left"), [(1, (3,)), (2, (2, 3)), (3, (1, 2, 3)), (9, (1, 2, 3))]
)
def test_so_many_of_the_newest_stay(model, tmp_path, keep, left):
    saved(tmp_path, model, 1, 2)
    saved(tmp_path, model, 3, keep=keep)
    assert names(tmp_path) == [f"step-{step:08d}.npz" for step in left]


def test_the_one_just_written_stays_though_its_step_is_lower(model, tmp_path):
    saved(tmp_path, model, 5, 8)
    saved(tmp_path, model, 2, keep=2)
    assert names(tmp_path) == ["step-00000002.npz", "step-00000008.npz"]


def test_weights_that_are_not_finite_are_named_and_counted(tmp_path):
    model = small_model()
    kernel, bias = model.trainable_variables
    kernel.assign(np.full(kernel.shape, np.nan))
    with pytest.raises(RunError, match=r"step 7 \(epoch 2\) '0000 kernel' is not"):
        save_checkpoint(tmp_path, model, STATE, keep=1)
    bias.assign(np.full(bias.shape, np.inf))
    with pytest.raises(RunError, match=r"'0000 kernel' and 1 more are not"):
        save_checkpoint(tmp_path, model, STATE, keep=1)
    assert names(tmp_path) == []
    # An optimizer's own numbers may be what they are.
    fill(model, 1.0)
    model.optimizer.momentums[0].assign(np.full((3, 2), np.inf))
    save_checkpoint(tmp_path, model, STATE, keep=1)


def test_only_a_models_own_floats_are_looked_at():
    arrays = {
        "0000 a": np.array([1.0, np.nan]),
        "0001 b": np.array([1]),
        "0002 c": np.array([-np.inf]),
        "state": np.asarray("{}"),
    }
    assert non_finite(arrays, 2) == ["0000 a"]
    assert non_finite(arrays, 3) == ["0000 a", "0002 c"]
    assert non_finite({"state": arrays["state"], "0001 b": arrays["0001 b"]}, 2) == []


def test_the_best_is_a_second_name_that_outlives_the_first(model, tmp_path):
    (first,) = saved(tmp_path, model, 1)
    keep_as_best(first)
    best = first.with_name("best.npz")
    assert best.samefile(first)
    keep_as_best(first)
    (second,) = saved(tmp_path, model, 2, keep=1)
    assert names(tmp_path) == ["best.npz", second.name]
    assert read_state(best).step == 1
    (first.parent / f"best.npz{PARTIAL_SUFFIX}").write_text(
        "what a killed process left"
    )
    keep_as_best(second)
    assert read_state(best).step == 2
    assert names(tmp_path) == ["best.npz", second.name]


def test_without_hard_links_the_best_is_a_copy(model, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (path,) = saved(tmp_path, model, 1)
    keep_as_best(path)
    best = path.with_name("best.npz")
    assert not best.samefile(path)
    assert best.read_bytes() == path.read_bytes()
    assert names(tmp_path) == ["best.npz", path.name]


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def without_state(path):
    np.savez(path, a=np.zeros(3))


def foreign_state(path):
    np.savez(path, state=np.asarray(json.dumps({"step": 1, "rank": 2})))


def odd_state(path):
    np.savez(path, state=np.asarray(json.dumps({"step": 1.5})))


def odd_history(path):
    np.savez(path, state=np.asarray(json.dumps({"history": {}})))


def empty_archive(path):
    with zipfile.ZipFile(path, "w"):
        pass


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "spoil",
    [
        cut,
        flipped,
        without_state,
        foreign_state,
        odd_state,
        odd_history,
        empty,
        empty_archive,
    ],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    model, tmp_path, spoil, caplog
):
    first, second = saved(tmp_path, model, 1, 2)
    assert damage(second) is None
    assert newest_checkpoint(tmp_path) == second
    assert caplog.text == ""
    spoil(second)
    assert damage(second)
    assert newest_checkpoint(tmp_path) == first
    assert f"{second} cannot be read" in caplog.text
    assert names(tmp_path) == [first.name, second.name]
    assert newest_checkpoint(tmp_path, set_aside=True) == first
    assert f"it is set aside as {second.name}.damaged" in caplog.text
    assert names(tmp_path) == [first.name, f"{second.name}.damaged"]
    with pytest.raises(UsageError, match=str(second)):
        restore(first.with_name(f"{second.name}.damaged"), model)


def test_the_best_is_the_last_resort_and_then_there_is_none(model, tmp_path, caplog):
    assert newest_checkpoint(tmp_path) is None
    (path,) = saved(tmp_path, model, 1)
    keep_as_best(path)
    path.unlink()
    best = path.with_name("best.npz")
    assert newest_checkpoint(tmp_path) == best
    assert f"{best} is the last checkpoint that can be read" in caplog.text
    empty(best)
    assert newest_checkpoint(tmp_path) is None


def test_a_folder_by_a_checkpoints_name_is_passed_over(model, tmp_path):
    (path,) = saved(tmp_path, model, 1)
    path.with_name("step-00000002.npz").mkdir()
    assert newest_checkpoint(tmp_path) == path


def test_what_is_asked_for_is_found_or_what_is_there_is_said(model, tmp_path):
    with pytest.raises(UsageError, match="no checkpoint yet"):
        find_checkpoint(tmp_path, "last")
    first, second = saved(tmp_path, model, 1, 2)
    keep_as_best(first)
    assert find_checkpoint(tmp_path, "best") == first.with_name("best.npz")
    assert find_checkpoint(tmp_path, "last") == second
    assert find_checkpoint(tmp_path, str(first)) == first
    with pytest.raises(
        UsageError, match=r"'nowhere\.npz'; .*best\.npz.*step-00000002\.npz"
    ):
        find_checkpoint(tmp_path, "nowhere.npz")


def test_another_configurations_checkpoint_is_refused(model, tmp_path):
    (path,) = saved(tmp_path, model, 1)
    with pytest.raises(
        UsageError, match=r"lacks \['0000 kernel \(3, 3\)'.* and 1 more: it was"
    ) as told:
        restore(path, small_model(units=3))

    assert str(told.value).count(" (3") == 3  # of the four that it lacks
    deep = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(4)]
    )
    with pytest.raises(UsageError, match="and 0 more: it was written by another"):
        restore(path, deep)


def test_weights_that_are_not_finite_are_restored_with_a_word(model, tmp_path, caplog):
    fill(model, 1.0)
    (path,) = saved(tmp_path, model, 1)
    assert restore(path, small_model()).step == 1
    assert caplog.text == ""
    with np.load(path) as arrays:
        content = dict(arrays)
    content["0001 bias"] = np.full(2, np.nan, np.float32)
    np.savez(path, **content)
    restore(path, small_model())
    assert "weights that are not finite (0001 bias)" in caplog.text


def test_what_is_no_archive_is_refused_by_name(tmp_path):
    for name, content in (("a.npz", b"RIFF"), ("b.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=rf"{name} isn't one, or is damaged"):
            read_state(tmp_path / name)

    np.save(tmp_path / "c.npy", np.zeros(3))
    with pytest.raises(UsageError, match=r"c\.npy isn't one"):
        read_state(tmp_path / "c.npy")
    empty_archive(tmp_path / "d.npz")
    with pytest.raises(UsageError, match="no training state"):
        read_state(tmp_path / "d.npz")


def test_a_pickled_array_in_a_checkpoint_is_not_run(model, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    (path,) = saved(tmp_path, model, 1)
    with np.load(path) as arrays:
        content = dict(arrays)
    np.savez(path, **(content | {"0000 kernel": np.array([Evil()], dtype=object)}))
    with pytest.raises(UsageError, match=r"lacks \['0000 kernel \(3, 2\)'\]"):
        restore(path, model)
    assert not (tmp_path / "ran").exists()
