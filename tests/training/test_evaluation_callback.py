"""`tfasr.BeamSearchEvaluation` in Keras's own ``fit``, on a model of Keras's own layers."""

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest

import tfasr
from tests.warm import run_script, run_tfasr
from tfasr.adapters.evaluation import BeamSearchEvaluation
from tfasr.errors import UsageError
from tfasr.ledger.events import read_events
from tfasr.training import swap
from tfasr.training.checkpoint import state_variables

WORDS = ("ab", "ba", "aab", "bb")
ALPHABET = " ab"
PROGRAM = (
    Path(__file__).parents[2] / "examples" / "recorder" / "with_word_beam_search.py"
)


def spoken(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Returns features (count, 24, 3), labels as `keras.losses.CTC` takes them, and texts."""
    rng = np.random.default_rng(seed)
    features = rng.normal(0, 0.1, (count, 24, 3)).astype(np.float32)
    labels = np.zeros((count, 7), np.int32)
    texts = []
    for utterance in range(count):
        text = " ".join(rng.choice(WORDS, 2))
        texts.append(text)
        for place, character in enumerate(text):
            labels[utterance, place] = ALPHABET.index(character) + 1
            features[
                utterance, 3 * place : 3 * place + 2, ALPHABET.index(character)
            ] += 1

    return features, labels, texts


def stock_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((24, 3)),
            keras.layers.Conv1D(16, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.LSTM(16, return_sequences=True),
            keras.layers.Dropout(0.05),
            keras.layers.Dense(len(ALPHABET) + 1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), keras.losses.CTC())
    return model


def fitted(
    run, *, epochs=6, seed=1, validation=None, **options
) -> keras.callbacks.History:
    keras.utils.set_random_seed(seed)
    features, labels, _ = spoken(192, seed=1)
    held_out, _, texts = spoken(10, seed=2)
    if validation is None:
        validation = [(held_out[:6], texts[:6]), (held_out[6:], texts[6:])]

    model = options.pop("model", None) or stock_model()
    more = options.pop("callbacks", [])
    callback = BeamSearchEvaluation(
        run, validation, words=WORDS, alphabet=ALPHABET, batch_size=8, **options
    )
    return model.fit(
        features,
        labels,
        batch_size=8,
        epochs=epochs,
        verbose=0,
        callbacks=[callback, *more],
    )


class Seen(keras.callbacks.Callback):
    """Remembers all values of the model and its optimizer at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_epoch_end(self, epoch, logs=None):
        self.values.append(values_of(self.model))


def values_of(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(v.value.numpy()) for v in state_variables(model).values()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("callback") / "run"
    seen = Seen()
    history = fitted(run_dir, targets=["wer=0.5"], callbacks=[seen])
    return run_dir, history, seen


def test_a_run_is_recorded_with_its_time_to_accuracy(finished):
    run_dir, history, _ = finished
    run = tfasr.load_run(run_dir)
    assert run.status == "success"
    points = run.accuracy_curve("wer")
    assert [point.epoch for point in points] == [1, 2, 3, 4, 5, 6]
    assert [point.value for point in points] == history.history["val_wer"]
    assert points[-1].value < 0.5 < points[0].value
    assert run.time_to_accuracy(wer=0.5).reached
    assert len(run.timeline.steps) == 6 * 24

    for interval in ("train", "swap", "eval_forward", "decode"):
        assert run.intervals[interval] > 0, interval

    assert sum(run.intervals.values()) == pytest.approx(run.wall_s)


def test_tfasr_report_shows_the_run(finished):
    run_dir, *_ = finished
    done = run_tfasr("report", run_dir, check=True)
    assert "WER 50 %" in done.stdout
    assert re.search(r"^ run +\d+\.\d+ ", done.stdout, re.MULTILINE)


def test_hypotheses_consist_of_the_dictionarys_words(finished):
    run_dir, *_ = finished
    _, _, texts = spoken(10, seed=2)
    for epoch in range(1, 7):
        path = run_dir / "hypotheses" / f"validation-epoch-{epoch:04d}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["reference"] for line in lines] == texts
        assert {word for line in lines for word in line["hypothesis"].split()} <= set(
            WORDS
        )


def test_training_goes_on_as_if_nothing_had_been_swapped(finished):
    _, _, seen = finished
    keras.utils.set_random_seed(1)
    features, labels, _ = spoken(192, seed=1)
    alone = Seen()
    stock_model().fit(
        features, labels, batch_size=8, epochs=6, verbose=0, callbacks=[alone]
    )

    for with_swaps, without in zip(seen.values, alone.values, strict=True):
        for ours, theirs in zip(with_swaps, without, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_the_training_model_is_away_while_another_evaluates(tmp_path, monkeypatch):
    held = []
    models = []
    on_device = swap.Swap._on_device

    def watched(self):
        held.append(swap.held_bytes(self._model))
        models.append(on_device(self))
        return models[-1]

    monkeypatch.setattr(swap.Swap, "_on_device", watched)
    model = stock_model()
    fitted(tmp_path / "run", epochs=2, model=model)
    # After the first call, which only builds the evaluation model.
    assert held[1:] == [0, 0]
    assert models[0] is models[1] is not model
    assert swap.held_bytes(models[0]) == 0
    memory = [
        e["value"] for e in read_events(tmp_path / "run") if e["key"] == "device_memory"
    ]
    # Adam keeps two values per weight; the evaluation model has the weights alone.
    assert len(memory) == 2
    assert 0 < memory[0]["evaluation"] < memory[0]["training"] / 2


def test_a_recorder_counts_what_came_before_and_fits_own_validation(tmp_path):
    features, labels, texts = spoken(12, seed=3)
    with tfasr.Recorder(
        tmp_path / "run", global_batch_size=4, targets=["cer=0.01"]
    ) as run:
        model = stock_model()
        callback = BeamSearchEvaluation(
            run, [(features, texts)], words=WORDS, alphabet=ALPHABET
        )
        validation = (features, labels)
        model.fit(
            features, labels, batch_size=4, verbose=0, epochs=2,
            validation_data=validation, callbacks=[callback],
        )  # fmt: skip

    scores = [
        e["value"] for e in read_events(tmp_path / "run") if e["key"] == "tracked_stats"
    ]
    assert len(scores) == 2
    assert all(score["loss"] > 0 and "wer" in score for score in scores)


def test_training_stops_at_the_targets(tmp_path):
    history = fitted(
        tmp_path / "run", targets=["cer=1"], stop_at_targets=True, epochs=8
    )
    assert len(history.history["val_cer"]) == 3  # the median of three evaluations


def loss_of_nothing(_, outputs):
    return 0.0 * keras.ops.mean(outputs)


def test_probabilities_and_a_last_blank_are_decoded_alike(tmp_path):
    """The same model, once with logits and the blank first, once the other way."""
    features, _, texts = spoken(6, seed=2)
    model = stock_model()
    inputs = keras.Input((24, 3))
    turned = keras.ops.roll(keras.ops.softmax(model(inputs)), -1, axis=-1)
    other = keras.Model(inputs, turned)
    other.compile(keras.optimizers.SGD(0.0), loss_of_nothing)
    model.compile(keras.optimizers.SGD(0.0), keras.losses.CTC())
    _, labels, _ = spoken(6, seed=2)
    lines = []
    for name, trained, options in (
        ("logits", model, {}),
        ("probabilities", other, {"from_logits": False, "blank": "last"}),
    ):
        callback = BeamSearchEvaluation(
            tmp_path / name, [(features, texts)], words=WORDS, alphabet=ALPHABET, batch_size=6,
            **options,
        )  # fmt: skip
        trained.fit(features, labels, batch_size=6, verbose=0, callbacks=[callback])
        path = tmp_path / name / "hypotheses" / "validation-epoch-0001.jsonl"
        lines.append(
            [json.loads(line)["hypothesis"] for line in path.read_text().splitlines()]
        )

    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alphabet": " abc"}, "outputs of the shape"),
        ({"validation": iter([])}, "must have batches"),
        ({"blank": "middle"}, 'must be "first" or "last"'),
    ],
)
def test_unfit_arguments_are_explained(tmp_path, options, words):
    features, labels, texts = spoken(4, seed=1)
    values = {"validation": [(features, texts)], "alphabet": ALPHABET, **options}
    with pytest.raises(UsageError, match=words):
        model = stock_model()
        validation = values.pop("validation")
        callback = BeamSearchEvaluation(
            tmp_path / "run", validation, words=WORDS, batch_size=4, **values
        )
        model.fit(features, labels, batch_size=4, verbose=0, callbacks=[callback])


def test_the_pages_program_runs(tmp_path):
    run_script(PROGRAM.read_text(), folder=tmp_path)
    shown = run_tfasr("report", "runs/stock", folder=tmp_path, check=True)
    assert "WER" in shown.stdout
    assert tfasr.load_run(tmp_path / "runs" / "stock").time_to_accuracy(wer=0.2).reached
