"""`tfasr export --to sherpa`: what sherpa-onnx makes of it is what tfasr writes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recognising.spoken_tones import RATE_HZ, RUN, pause, sentence, spoken
from tfasr.alphabet import Alphabet
from tfasr.cli import parse, run
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.errors import UsageError
from tfasr.exporting.onnx import GraphWriter, quantised
from tfasr.exporting.sherpa import (
    decoder_graph,
    encoder_graph,
    sherpa_files,
    text_of_tokens,
    token_lines,
)
from tfasr.recognising.runtimes import onnx_session
from tfasr.recognising.spec import check_sums

onnx = pytest.importorskip("onnx", reason="needs the export extra: pip install 'tfasr[export]'")
pytest.importorskip("onnxruntime")


PIECES = ("\u2581", "a", "b", "\u2581a", "ab")
UNITS = Alphabet(" ab", None, tuple((piece, -1.0) for piece in PIECES))
ALPHABETS = [
    Alphabet(" ab_"),
    Alphabet("ab ", separator=None),
    Alphabet("xé1", separator=None),
    UNITS,
]
TEXTS = ["abc dad", "a bb ccc dddd", "dcba"]


def path_graph(classes: int) -> bytes:
    """A recogniser's graph whose features are the log-probabilities."""
    writer = GraphWriter()
    writer.node("Identity", ["features"], "log_probs")
    inputs = [("features", 1, ["batch", "frames", classes]), ("lengths", 6, ["batch"])]
    outputs = [("log_probs", 1, ["batch", "frames", classes])]
    return writer.file("path", inputs, outputs, {})


GRAPHS = [
    (
        alphabet,
        onnx_session(encoder_graph(path_graph(alphabet.num_classes), alphabet, {})),
        onnx_session(decoder_graph(alphabet, {})),
    )
    for alphabet in ALPHABETS
]


def symbols(lines: str) -> dict[int, str]:
    """What sherpa-onnx reads of tokens.txt."""
    pairs = [line.split(" ") for line in lines.splitlines()]
    return {int(number): symbol.replace("\u2581", " ") for symbol, number in pairs}


def read_out(decoder, tokens: np.ndarray) -> list[int]:
    """What sherpa-onnx's search for Moonshine models does with an encoder's output."""
    said, before = [], 1
    for position in range(1, int(tokens.shape[1] * 384 / 16000.0 * 6) + 1):
        inputs = [np.array([[before]], np.int32), tokens, np.array([position], np.int32)]
        names = [one.name for one in decoder.get_inputs()]
        before = int(decoder.run(None, dict(zip(names, inputs, strict=True)))[0][0, 0].argmax())
        if before == 2:
            break
        said.append(before)
    return said


@settings(max_examples=60, deadline=None)
@given(which=st.integers(0, 3), path=st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_tokens_are_those_of_greedy_decoding(which, path):
    alphabet, encoder, decoder = GRAPHS[which]
    path = np.minimum(path, alphabet.blank_id)
    log_probs = np.log(np.eye(alphabet.num_classes, dtype=np.float32)[path] + 0.01)[None]
    lengths = np.array([len(path)], np.int32)
    decoded = GreedyDecoder(alphabet).decode(log_probs, lengths)[0].text
    (tokens,) = encoder.run(None, {"features": log_probs, "lengths": lengths})
    assert text_of_tokens(tokens, alphabet) == " ".join(decoded.split())
    names = symbols(token_lines(alphabet))
    text = "".join(names[one] for one in read_out(decoder, tokens))
    assert text.removeprefix(" " if alphabet.units else "") == " ".join(decoded.split())


def export(work: Path, *words: object) -> int:
    given = ["--to", "sherpa", "--run_dir", RUN, "--shard_dir", work / "shards", *words]
    return run(parse(["tfasr", "export", *map(str, given)]))


@pytest.fixture(scope="module")
def exported(work) -> Path:
    assert export(work, "--out", work / "sherpa") == 0
    return work / "sherpa"


def test_an_export_is_whole_and_says_what_it_is(exported, tmp_path):
    names = {path.name for path in exported.iterdir()}
    graphs = {"preprocess.onnx", "encode.onnx", "decode.onnx"}
    assert names == {*graphs, "tokens.txt", "README.md", "SHA256SUMS"}
    check_sums(exported)
    card = (exported / "README.md").read_text()
    assert "--moonshine-preprocessor=preprocess.onnx" in card
    assert "It cannot stream." in card
    shutil.copytree(exported, tmp_path / "changed")
    with (tmp_path / "changed" / "tokens.txt").open("a") as file:
        file.write("x 99\n")
    with pytest.raises(UsageError, match="tokens.txt has changed"):
        check_sums(tmp_path / "changed")


def test_samples_in_text_out(exported, recogniser):
    preprocess, encode, decode = (
        onnx_session((exported / f"{name}.onnx").read_bytes())
        for name in ("preprocess", "encode", "decode")
    )
    for seed in range(3):
        samples = spoken(sentence(np.random.default_rng(seed), 4), seed=seed)
        (found,) = preprocess.run(None, {"samples": samples[None]})
        np.testing.assert_allclose(
            found[0], recogniser.spec.normalised_features(samples), atol=2e-3
        )
        lengths = np.array([found.shape[1]], np.int32)
        (tokens,) = encode.run(None, {"features": found, "lengths": lengths})
        names = symbols((exported / "tokens.txt").read_text())
        text = "".join(names[one] for one in read_out(decode, tokens))
        assert text == recogniser.transcribe(samples).text


def test_sherpa_onnx_writes_what_tfasr_writes(exported, recogniser):
    sherpa_onnx = pytest.importorskip("sherpa_onnx", reason="needs pip install sherpa-onnx")
    files = {name: str(exported / f"{name}.onnx") for name in ("preprocess", "encode", "decode")}
    other = sherpa_onnx.OfflineRecognizer.from_moonshine(
        preprocessor=files["preprocess"],
        encoder=files["encode"],
        uncached_decoder=files["decode"],
        cached_decoder=files["decode"],
        tokens=str(exported / "tokens.txt"),
    )

    def text(samples: np.ndarray) -> str:
        stream = other.create_stream()
        stream.accept_waveform(RATE_HZ, samples)
        other.decode_stream(stream)
        return stream.result.text

    for seed, said in enumerate(TEXTS):
        samples = spoken(said, seed=seed)
        assert text(samples) == recogniser.transcribe(samples).text
    assert text(pause(0.5)) == ""
    assert text(pause(0.01)) == ""  # too short for a frame


def test_int8_weights_come_along(exported_tones, recogniser):
    small = quantised((exported_tones / "model.onnx").read_bytes())
    encoder = sherpa_files(recogniser.spec, small)["encode.onnx"]
    operators = {node.op_type for node in onnx.load_from_string(encoder).graph.node}
    assert "DynamicQuantizeLSTM" in operators
    features = recogniser.spec.normalised_features(spoken("abc dad"))[None]
    inputs = {"features": features, "lengths": np.array([features.shape[1]], np.int32)}
    (tokens,) = onnx_session(encoder).run(None, inputs)
    assert text_of_tokens(tokens, recogniser.spec.alphabet)[:2] == "ab"


def test_what_sherpa_onnx_could_not_run_is_refused(work, tmp_path, capsys):
    shutil.copytree(RUN, tmp_path / "run")
    path = tmp_path / "run" / "experiment.json"
    content = json.loads(path.read_text())
    content["features"].update(sample_rate_hz=8000, upper_edge_hz=4000.0)
    path.write_text(json.dumps(content))
    assert export(work, "--out", tmp_path / "new", "--run_dir", tmp_path / "run") == 2
    assert "16000 Hz" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
