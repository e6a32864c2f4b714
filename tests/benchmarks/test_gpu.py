"""What a GPU is measured by, at sizes where a processor takes no time."""

import importlib.util
import inspect
import json

import numpy as np
import pytest
import soundfile

NEEDS_TORCH = "needs PyTorch: see benchmarks/training_step.py"
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Nine recordings of noise, packed with a recipe that changes all that can be changed."""
    from gpu.data import Packed, pack

    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(1)
    (folder / "splits").mkdir()

    for split, count in (("train", 6), ("dev", 3)):
        rows = ["path\tseconds\ttext"]
        for number in range(count):
            samples = 0.1 * random.standard_normal(8000 + 1600 * number)
            soundfile.write(folder / f"{split}{number}.flac", samples, 16000)
            rows.append(f"{split}{number}.flac\t1\tA BEE")

        (folder / "splits" / f"{split}.tsv").write_text("\n".join(rows) + "\n")

    bindings = (
        "PipelineConfig.global_batch_size = 2",
        "PipelineConfig.num_buckets = 2",
        "AcousticModelConfig.lstm_units = 4",
        "AcousticModelConfig.conv_filters = 4",
        "AugmentationConfig.from_epoch = 2",
    )
    out = folder / "packed"
    pack(
        folder,
        "fast/mini_librispeech.gin",
        out,
        "noise",
        part_mib=0.05,
        bindings=bindings,
    )
    assert len(list(out.glob("noise-*.zip"))) > 1

    return Packed(out, "noise")


def test_every_task_fits_its_function_and_its_time():
    from gpu.run import PIECES
    from gpu.tasks import TASKS
    from twin.sizes import parse_size

    assert sum(piece["budget_s"] for piece in PIECES.values()) <= 4500

    for piece in PIECES.values():
        assert piece["expects"]
        assert piece["budget_s"] < 600

        keys = [task["key"] for task in piece["tasks"]]
        assert len(set(keys)) == len(keys)

        for task in [*piece["tasks"], *piece["toy"]]:
            arguments = task["arguments"]
            inspect.signature(TASKS[task["kind"]]).bind(**arguments)

            assert task["limit_s"] <= 600

            if "size" in arguments and task["kind"] == "steps":
                parse_size(arguments["size"])


def test_batches_hold_every_utterance_once_as_the_features_say(packed):
    from tfasr.data.features import normalise_frames

    for batches, count in ((packed.training(1, 1), 6), (packed.evaluation(), 3)):
        batches = list(batches)
        positions = np.concatenate([batch["positions"] for batch in batches]).tolist()
        if count == 3:
            # The validation split has full batches, its last utterance twice.
            assert len(positions) == 4

            positions = set(positions)

        assert sorted(positions) == list(range(count))

    batch, row = next(
        (b, list(b["positions"]).index(2)) for b in batches if 2 in b["positions"]
    )
    frames = batch["feature_lengths"][row]
    raw = packed.splits["validation"][2].features.astype(np.float32)

    wanted = normalise_frames(raw, packed.config)

    np.testing.assert_allclose(batch["features"][row, :frames], wanted, rtol=1e-5)
    assert not batch["features"][row, frames:].any()

    labels = batch["labels"][row, : batch["label_lengths"][row]]
    assert labels.tolist() == packed.alphabet.encode("a bee")


def test_few_shapes_are_compiled(packed):
    """Lengths that aren't full share batches; each epoch's last batch has the same shape."""
    assert len(packed.recipe["padded_to"]["train"]) == 2

    shapes = {
        batch["features"].shape[:2]
        for epoch in range(1, 9)
        for batch in packed.training(1, epoch)
    }
    # Six utterances make three batches of two, of either length.
    assert shapes <= {(2, frames) for frames in packed.recipe["padded_to"]["train"]}


def test_evaluation_compiles_one_size_of_batch(packed):
    evaluated = {batch["features"].shape[0] for batch in packed.evaluation()}
    assert evaluated == {2}


def test_an_epoch_is_drawn_anew_and_masked_from_its_beginning_on(packed):
    def epoch(number):
        batches = list(packed.training(7, number))
        return [batch["features"][:, :, :80] for batch in batches], batches

    (first, _), (again, _), (second, batches) = epoch(1), epoch(1), epoch(2)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)

    frames = [batch["feature_lengths"] for batch in batches]
    shares = [
        np.mean(features[row, :length] == 0)
        for features, lengths in zip(second, frames, strict=True)
        for row, length in enumerate(lengths)
    ]

    assert max(shares) > 0.02
    assert not any((features[0, :10] == 0).any() for features in first)


def test_other_vocal_tracts_are_those_of_the_training_data(packed):
    from gpu.data import _other_vocal_tract

    from tfasr.data.augmentation import VocalTract

    features = packed.splits["train"][0].features.astype(np.float32)
    for factor in (0.85, 1.0, 1.1):
        wanted = (
            VocalTract(0.15, packed.config).scaled(features, np.float32(factor)).numpy()
        )
        result = _other_vocal_tract(features, factor, packed.config)

        np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-3)


def test_a_missing_part_is_named(packed, tmp_path):
    from gpu.data import Packed

    (tmp_path / "noise.json").write_text(json.dumps(packed.recipe))

    with pytest.raises(FileNotFoundError, match="train0.flac"):
        Packed(tmp_path, "noise")


def test_a_task_that_fails_leaves_the_others_and_what_is_done_stays(
    tmp_path, monkeypatch
):
    from gpu import run

    def task(key, **arguments):
        return {
            "key": key,
            "kind": "fake",
            "backend": "torch",
            "limit_s": 60,
            **arguments,
        }

    started = []

    def run_task(task, limit_s, places):
        started.append(task["key"])
        answer = None if task["key"] == "wrong" else {"utterances": 1, "rows": []}
        status = "failed" if answer is None else "done"
        more = {"error": "ValueError: no", "use": {"joules": {}}, "answer": answer}

        return {**task, "kind": "decoder", "status": status, **more}

    monkeypatch.setattr(run, "run_task", run_task)
    tasks = [task("wrong", arguments={}), task("right", arguments={"a": 1})]
    piece = {"expects": ["much"], "budget_s": 60}

    for _ in range(2):
        run.run_piece("decoder", piece, tasks, tmp_path, float("inf"), {})

    assert started == ["wrong", "right", "wrong"]

    result = json.loads((tmp_path / "decoder.json").read_text())

    assert result["expects"] == ["much"]
    assert {key: t["status"] for key, t in result["tasks"].items()} == {
        "wrong": "failed",
        "right": "done",
    }

    text = (tmp_path / "table.md").read_text()
    assert "| decoder: wrong (failed) | ValueError: no |" in text


@pytest.mark.skipif(not HAS_TORCH, reason=NEEDS_TORCH)
def test_a_task_gives_what_it_knew_when_its_time_was_over():
    from gpu.run import run_task

    arguments = {"size": 64, "copied_mib": 1, "seconds": 8.0}
    task = {
        "key": "ceilings",
        "kind": "ceilings",
        "backend": "torch",
        "arguments": arguments,
    }

    result = run_task(task, 25.0, {})

    assert result["status"] == "cut"
    assert result["answer"]["float32_flops_per_s"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason=NEEDS_TORCH)
def test_steps_take_turns_on_pytorchs_backend():
    from gpu.run import run_task

    systems = [["torch", None], ["tfasr", "torch"], ["stock_keras", "torch"]]
    arguments = {
        "size": "8x2x60",
        "precisions": ["float32"],
        "rounds": 1,
        "turn_s": 0.0,
    }
    arguments["systems"] = systems
    task = {"key": "steps", "kind": "steps", "backend": "torch", "arguments": arguments}

    result = run_task(task, 300.0, {})

    assert result["status"] == "done", result["error"]
    for row in result["answer"]["rows"]:
        assert row["step_ms"] > 0
        assert np.isfinite(row["last_loss"])
