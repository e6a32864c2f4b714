"""A recogniser of sub-word units: every decoder, stream and export writes plain text."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.recognising.spoken_tones import sentence, spoken, write_wav
from tests.tones import TONES_GIN
from tfasr.alphabet import Alphabet
from tfasr.cli import parse, run
from tfasr.decoding.decoder import ctc_log_probs
from tfasr.training.trained import open_trained
from tfasr.tta.run import load_run

pytest.importorskip("sentencepiece", reason="needs pip install 'tfasr[units]'")


def tfasr(*words: object) -> None:
    assert run(parse(["tfasr", *map(str, words)])) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("units")
    rng = np.random.default_rng(5)
    for split, count in (("train", 24), ("validation", 6)):
        lines = ["path\ttext"]
        for number in range(count):
            text = sentence(rng, 3)
            write_wav(folder / f"{split}{number}.wav", spoken(text, seed=number))
            lines.append(f"{split}{number}.wav\t{text.upper()}")

        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")

    whole = "FeatureConfig.normalisation = 'corpus'"  # as streams need
    tfasr(
        *(
            "prepare",
            "--corpus",
            "tsv",
            "--corpus_dir",
            folder,
            "--shard_dir",
            folder / "shards",
        ),
        *("--gin_file", TONES_GIN, "--gin_binding", whole),
        *("--alphabet", "auto", "--units", 12, "-q"),
    )
    tfasr(
        *("train", "--shard_dir", folder / "shards", "--run_dir", folder / "run", "-q"),
        *("--gin_file", TONES_GIN, "--gin_binding", whole),
        *("--gin_binding", "Adam.learning_rate = 0.03"),
        *("--gin_binding", "AcousticModelConfig.num_lstm_layers = 2"),
        *("--gin_binding", "TrainingConfig.intermediate_loss_weight = 0.3"),
        *("--gin_binding", "TrainingConfig.intermediate_labels = 'characters'"),
    )
    return folder


def transcribed(folder: Path, run_dir: Path, capsys, *words: object) -> str:
    sounds = sorted(folder.glob("validation*.wav"))
    capsys.readouterr()
    tfasr("transcribe", *sounds, "--run_dir", run_dir, "-q", *words)
    return capsys.readouterr().out


def test_the_run_states_its_units_and_is_compared_by_its_text(folder):
    ledger = load_run(folder / "run")
    assert ledger.fact("units")["count"] == 12
    assert ledger.comparability["alphabet"] == [" abcd", None]
    assert "units" not in ledger.comparability
    assert Alphabet.load(folder / "run" / "alphabet.json").num_classes == 13


@pytest.mark.parametrize("decoder", ["greedy", "beam", "word_beam"])
def test_decoders_write_text_whose_words_have_times(folder, capsys, decoder):
    words = ["--decoder", decoder] + ["--beam_width", "8"] * (decoder != "greedy")
    text = transcribed(folder, folder / "run", capsys, *words)
    lines = transcribed(
        folder, folder / "run", capsys, *words, "--format", "json"
    ).splitlines()
    for line in map(json.loads, lines):
        assert line["text"] in text
        assert " ".join(word["word"] for word in line["result"]) == line["text"]
        assert all(word["start"] < word["end"] for word in line["result"])


def test_the_middle_layer_rescores_by_characters(folder):
    trained = open_trained(folder / "run")
    weight = 1e9
    decoder = trained.decoder(name="word_beam", beam_width=16)
    result = trained.evaluate("validation", decoder, middle_weight=weight)
    hypotheses = {
        utterance.position: hypothesis
        for utterance, hypothesis in zip(
            result.utterances, result.hypotheses, strict=True
        )
    }
    model = trained.model()
    source = trained.source("validation")
    alphabet = trained.alphabet
    for batch in source.evaluation():
        _, _, logits = model.utterance_losses(batch, training=False, middle=True)
        log_probs = tf.nn.log_softmax(logits).numpy()
        lengths = model.output_lengths(batch["feature_lengths"]).numpy()
        for position, frames, length in zip(
            batch["positions"].numpy(), log_probs, lengths, strict=True
        ):
            hypothesis = hypotheses.pop(position)
            spelled = [
                label
                for unit in alphabet.encode(hypothesis.text)
                for label in alphabet.spelled_classes[unit]
            ]
            (of_text,) = ctc_log_probs(frames[:length], [spelled])
            assert hypothesis.score / weight == pytest.approx(of_text, abs=1e-3)

    assert not hypotheses


def test_an_export_writes_the_same_text(folder, capsys):
    pytest.importorskip("onnxruntime")
    out = folder / "onnx"
    tfasr("export", "--to", "onnx", "--run_dir", folder / "run", "--shard_dir", folder / "shards",
          "--out", out, "-q")  # fmt: skip
    text = transcribed(folder, folder / "run", capsys)
    assert transcribed(folder, out, capsys) == text
    stream = (
        folder / "validation0.wav",
        "--stream",
        "--no_endpoints",
        "--format",
        "text",
        "-q",
    )
    texts = []
    for run_dir in (folder / "run", out):
        tfasr("transcribe", *stream, "--run_dir", run_dir)
        texts.append(capsys.readouterr().out)

    assert texts[0] == texts[1]
