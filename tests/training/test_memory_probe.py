"""The longest batch is tried before the first."""

import dataclasses
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfasr.alphabet import Alphabet
from tfasr.data.batches import PipelineConfig, Share
from tfasr.errors import RunError
from tfasr.ledger.events import read_events
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.telemetry.machine import available_bytes, peak_bytes
from tfasr.training import memory as memory_probe
from tfasr.training.build import build_model
from tfasr.training.checkpoint import plain_array, state_variables
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.memory import (
    BufferNeed,
    LongestBatch,
    batch_spec,
    buffer_need,
    buffer_of_preset,
    check_buffer,
    check_memory,
    longest_batch,
    synthetic_batch,
    try_on_device,
)
from tfasr.training.run import open_run
from tfasr.training.team import Team
from tfasr.training.train import train

GIB = 2**30


def experiment(batch=16, parts=1):
    return Experiment(
        model=AcousticModelConfig(conv_filters=16, num_lstm_layers=0, dropout=0.5),
        pipeline=PipelineConfig(
            padding="bucketed", global_batch_size=batch, prefetch=0
        ),
        training=TrainingConfig(
            optimizer=lambda: keras.optimizers.Adam(0.01),
            gradient_accumulation_steps=parts,
            epochs=1,
            sentences_every_steps=0,
        ),
    )


def source(frames=(100, 100, 300, 800), boundaries=(100, 800), copies=16):
    """What `check_memory` asks a BatchSource for; texts get longer with frames."""
    utterances = [
        SimpleNamespace(text="ab " * (f // 100), frames=f)
        for f in frames
        for _ in range(copies)
    ]
    split = SimpleNamespace(
        utterances=utterances,
        frames=np.array([u.frames for u in utterances]),
        frames_needed=np.array([len(u.text) for u in utterances]),
    )
    return SimpleNamespace(
        boundaries=list(boundaries),
        split=split,
        frame_ranges=(split.frames, split.frames),
        batch_sizes=lambda size, replicas: [size] * len(boundaries),
    )


def built(config):
    return build_model(config, Alphabet(), compiled=True)


def state(model):
    return {name: plain_array(v).copy() for name, v in state_variables(model).items()}


def test_the_longest_batch_is_the_one_of_most_padded_frames():
    letters = 3 * 8
    assert longest_batch(source(), 16, Alphabet()) == LongestBatch(16, 800, letters)
    # Three utterances of 800 frames make no batch of 16; sixteen of 300 have more.
    few = source(frames=(800, *(300,) * 16), boundaries=(300, 800), copies=1)
    assert longest_batch(few, 16, Alphabet()) == LongestBatch(16, 300, 9)
    # At a slower tempo those of 300 frames reach the longest bucket.
    few.frame_ranges = (few.split.frames - 30, few.split.frames + 30)
    assert longest_batch(few, 16, Alphabet()) == LongestBatch(16, 800, 24)


def out_of_memory_above(utterances, tried):
    def step(config, batch):
        tried.append(batch.utterances)
        if batch.utterances > utterances:
            raise tf.errors.ResourceExhaustedError(None, None, "no room")

    return step


@pytest.mark.parametrize("fitting", [1, 5, 15])
def test_what_fits_on_a_device_is_found_and_named(fitting):
    config = experiment()
    tried = []
    with pytest.raises(
        RunError, match=rf"{fitting} fit: bind .*global_batch_size = {fitting}, "
    ):
        try_on_device(
            config,
            built(config),
            LongestBatch(16, 800, 24),
            out_of_memory_above(fitting, tried),
        )

    assert tried[0] == 16
    assert len(tried) <= 6


def test_a_batch_that_fits_is_tried_once_and_one_that_never_does_is_said_so():
    config = experiment()
    tried = []
    try_on_device(
        config, built(config), LongestBatch(16, 800, 24), out_of_memory_above(16, tried)
    )
    assert tried == [16]
    with pytest.raises(RunError, match="Not even one utterance"):
        try_on_device(
            config, built(config), LongestBatch(16, 800, 24), out_of_memory_above(0, [])
        )


def test_the_step_on_a_device_leaves_no_trace(monkeypatch):
    """The GPU's way, taken on a CPU: the run after it is the run without it."""
    losses = {}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: ["GPU:0"])
    for tried in (False, True):
        config = experiment()
        model = built(config)
        if tried:
            before = state(model)
            check_memory(
                config, model, source(), Alphabet(), lambda: batch_spec(experiment())
            )
            after = state(model)
            assert before.keys() == after.keys()
            for name in before:
                np.testing.assert_array_equal(before[name], after[name])

        step = model.global_step(batch_spec(config))
        batches = [synthetic_batch(config, 4, 100, seed=seed) for seed in range(3)]
        losses[tried] = [step(batch)["utterance_loss"].numpy() for batch in batches]
        assert step.experimental_get_tracing_count() == 1

    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)


def doubt_estimates(monkeypatch):
    monkeypatch.setattr(memory_probe, "estimated_step_bytes", lambda *_: 2**50)


def measured(monkeypatch, answer):
    doubt_estimates(monkeypatch)
    asked = []

    def measure(config, alphabet, batches, frames, labels):
        asked.append((tuple(batches), frames, labels))
        return answer

    monkeypatch.setattr(memory_probe, "measured_step_bytes", measure)
    return asked


def need(config, available):
    return check_memory(
        config, built(config), source(), Alphabet(), None, available=available
    )


def test_a_small_batch_is_only_estimated(monkeypatch):
    monkeypatch.setattr(
        memory_probe, "measured_step_bytes", lambda *_: pytest.fail("measured")
    )
    found = need(experiment(), available=100 * GIB)
    assert not found.measured
    assert "estimated" in str(found)


def test_a_large_batch_is_measured_and_may_fit(monkeypatch):
    asked = measured(monkeypatch, [0, 2 * 2**20])
    found = need(experiment(), available=0)
    assert asked == [((2, 4), 800, 24)]
    assert found.measured
    assert 14 * 2**20 <= found.needed_bytes < 50 * 2**20


def test_what_does_not_fit_on_the_host_is_refused_with_what_does(monkeypatch):
    config = experiment()
    rss = memory_probe.psutil.Process().memory_info().rss
    # 2 GiB more than this process has, 100 MiB an utterance and some for features: some
    # 15 fit.
    measured(monkeypatch, [rss + GIB, rss + GIB + 200 * 2**20])
    with pytest.raises(
        RunError, match=r"16 utterances of 800 frames.*1\d fit: bind"
    ) as caught:
        need(config, available=2 * GIB)
    assert "gradient_accumulation_steps = 2" in str(caught.value)
    # Half the batch at a time holds half of it.
    assert need(experiment(parts=2), available=2 * GIB).measured


def test_a_process_that_was_ended_for_want_of_memory_counts_as_full(monkeypatch):
    measured(monkeypatch, [GIB])
    with pytest.raises(RunError, match="2 fit"):
        need(experiment(), available=0)
    measured(monkeypatch, [])
    with pytest.raises(RunError, match="Not even one utterance"):
        need(experiment(), available=0)


def test_a_process_takes_the_steps_and_says_what_they_held(monkeypatch):
    config = experiment(batch=8)
    model = built(config)
    before = state(model)
    doubt_estimates(monkeypatch)
    longest = source(frames=(3000,), boundaries=(3000,))
    found = check_memory(config, model, longest, Alphabet(), None, available=100 * GIB)
    assert found.measured
    assert 2**27 < found.needed_bytes < 10 * GIB
    for name, value in state(model).items():
        np.testing.assert_array_equal(before[name], value)


def test_a_run_that_cannot_hold_its_longest_batch_ends_before_its_first_step(
    monkeypatch, shard_dir, tmp_path
):
    monkeypatch.setattr(memory_probe, "available_bytes", lambda: 0)
    measured(monkeypatch, [2 * GIB, 4 * GIB])
    with pytest.raises(RunError, match="The longest batch must fit"):
        train(experiment(), shard_dir=shard_dir, run_dir=tmp_path / "run")
    # A start that never came to training leaves no claim on the folder.
    assert not (tmp_path / "run").exists()
    train(
        experiment(), shard_dir=shard_dir, run_dir=tmp_path / "run", memory_probe=False
    )
    assert read_events(tmp_path / "run")[-1]["metadata"]["status"] == "success"


def test_steps_of_another_process_are_no_part_of_a_time_to_accuracy(
    monkeypatch, shard_dir, tmp_path
):
    run_dir = tmp_path / "run"
    booked = []
    doubt_estimates(monkeypatch)

    def measure(*_):
        booked.extend(event["key"] for event in read_events(run_dir))

    monkeypatch.setattr(memory_probe, "measured_step_bytes", measure)
    train(experiment(), shard_dir=shard_dir, run_dir=run_dir)
    assert booked[-1] == "init_start"
    keys = [event["key"] for event in read_events(run_dir)]
    assert keys.index("model_creation") >= len(booked)


@pytest.mark.parametrize(
    ("preset", "batches", "utterances"),
    [
        ("paper_sys1.gin", 40, 96),
        ("paper_sys2.gin", 100, 240),
        ("paper_sys10.gin", 100, 300),
    ],
)
def test_the_buffers_of_table_2_are_whole_batches_in_host_memory(
    preset, batches, utterances
):
    found = buffer_of_preset([preset], [])
    assert found == BufferNeed(batches, utterances, frames=1670, features=93)
    # Table 2's batches, one being filled and one in training; 93 float32 of 1670 frames
    # each.
    assert found.needed_bytes == (batches + 2) * utterances * 1670 * 93 * 4


def test_of_buckets_the_longest_utterance_decides():
    # 16.7 s in frames of 10 ms, as LibriSpeech is cut by default.
    bucketed = "PipelineConfig.padding = 'bucketed'"
    need = buffer_of_preset([], [bucketed, "PipelineConfig.prefetch = 7"])
    assert need == BufferNeed(7, 96, 1670, 93)
    longer = buffer_of_preset([], [bucketed, "ShardConfig.max_duration_s = 30.0"])
    assert longer.frames == 3000


@given(
    prefetch=st.integers(0, 10_000),
    utterances=st.integers(1, 1000),
    frames=st.integers(1, 4000),
    available=st.integers(0, 2**40),
)
def test_a_buffer_that_does_not_fit_names_bindings_that_do(
    prefetch, utterances, frames, available
):
    need = BufferNeed(prefetch, utterances, frames, 93)
    refusal = need.refusal(available)
    assert (refusal is None) == (need.needed_bytes <= available)
    if refusal is None or "Not even one" in refusal:
        return
    remedy = refusal.rpartition("Bind ")[2]
    bound = dict(re.findall(r"PipelineConfig.(\w+) = (\d+)", remedy))
    assert bound["prefetch"] != "0"
    mended = dataclasses.replace(
        need,
        prefetch=int(bound["prefetch"]),
        utterances=min(int(bound.get("global_batch_size", utterances)), utterances),
    )
    assert mended.refusal(available) is None


@pytest.mark.parametrize("devices", [[], ["GPU:0"]])
def test_a_buffer_that_does_not_fit_is_refused_on_every_device(monkeypatch, devices):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: devices)
    monkeypatch.setattr(memory_probe, "try_on_device", lambda *_: None)
    rss = memory_probe.psutil.Process().memory_info().rss
    config = experiment()
    pipeline = PipelineConfig(padding="bucketed", global_batch_size=16, prefetch=10**6)
    config = dataclasses.replace(config, pipeline=pipeline)
    with pytest.raises(
        RunError, match=r"Bind PipelineConfig.prefetch = \d+, which fits"
    ):
        check_memory(
            config, built(config), source(), Alphabet(), lambda: None, available=2 * GIB
        )
    fits = buffer_need(experiment(), 16, 800)
    check_buffer(fits, 2 * GIB + rss)


def test_a_limit_of_address_space_is_what_is_available():
    assert 0 < available_bytes() < 2**50
    assert peak_bytes() > 2**20
    script = """
        import psutil, resource
        from tfasr.telemetry.machine import available_bytes
        limit = psutil.Process().memory_info().vms + 100 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        print(available_bytes())
    """
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert 50 * 2**20 < int(finished.stdout) <= 100 * 2**20


@pytest.mark.parametrize(
    ("parts", "replicas", "workers", "largest"),
    [(1, 1, 1, 12), (2, 1, 1, 6), (1, 3, 1, 12), (1, 1, 3, 4)],
)
def test_an_evaluation_reads_twice_what_a_device_trains_on_at_a_time(
    shard_dir, tmp_path, parts, replicas, workers, largest
):
    held = experiment(batch=6, parts=parts)
    held = dataclasses.replace(
        held,
        pipeline=dataclasses.replace(
            held.pipeline,
            num_buckets=1,
            global_batch_size=3,
            batch_size_schedule=((2, 6),),
        ),
        training=dataclasses.replace(held.training, num_replicas=replicas),
    )
    team = Team()
    team.share = Share(0, workers) if workers > 1 else None
    batches = (
        open_run(held, shard_dir, tmp_path, team).sources["validation"].evaluation()
    )
    sizes = [len(batch["positions"]) for batch in batches]
    assert sizes == [largest] * (24 // largest)
