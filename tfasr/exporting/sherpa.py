"""Writes a recogniser as the three graphs of a Moonshine model in sherpa-onnx.

Moonshine is the only kind of model to which sherpa-onnx passes samples at 16 kHz unchanged.
sherpa-onnx calls a preprocessor (samples to features), an encoder, and then a decoder once per
token until the text ends. Here the encoder contains the recogniser and computes the whole text,
greedily; the decoder, which has no weights, returns its tokens one by one.
Source: sherpa-onnx 2.0.1, csrc/offline-moonshine-model.cc and
offline-moonshine-greedy-search-decoder.cc.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tfasr.alphabet import WORD_START, Alphabet
from tfasr.data.batches import BatchSource
from tfasr.errors import RunError
from tfasr.exporting.onnx import GraphWriter, checked_feature_graph, metadata
from tfasr.kit.files import write_whole
from tfasr.recognising.runtimes import onnx_session
from tfasr.recognising.spec import FEATURES, LENGTHS, LOG_PROBS, RecogniserSpec
from tfasr.scoring.errors import Scored

PREPROCESSOR_FILE = "preprocess.onnx"
ENCODER_FILE = "encode.onnx"
DECODER_FILE = "decode.onnx"
TOKENS_FILE = "tokens.txt"
SAMPLE_RATE_HZ = 16000  # sherpa-onnx resamples all recordings to this rate
TOKENS = "tokens"
_SPACE = " "
_NOT_CHARACTERS = ("<unk>", "<s>", "</s>")  # ids 0 to 2; the characters' ids follow
_END = _NOT_CHARACTERS.index("</s>")
# If the encoder returns n numbers, sherpa-onnx asks for at most n x 384 / 16000 x 6 tokens, about
# n / 7. So n is 7 per token, plus 8.
_NUMBERS_PER_TOKEN, _NUMBERS_BEYOND = 7, 8


def write_sherpa(
    folder: Path, spec: RecogniserSpec, model: Path, source: BatchSource, expected: list[Scored]
) -> int:
    """Writes sherpa-onnx's files and returns the size of the graphs in bytes.

    Raises RunError if more than 0.5 % of the graphs' texts differ from the ``expected`` ones.
    """
    files = sherpa_files(spec, model.read_bytes())
    texts = [scored.transcript.hypothesis for scored in expected]
    _check_texts(source, texts, files[ENCODER_FILE], spec.alphabet)
    for name, content in files.items():
        write_whole(folder / name, content)
    return sum(len(content) for name, content in files.items() if name != TOKENS_FILE)


def sherpa_files(spec: RecogniserSpec, graph: bytes) -> dict[str, bytes]:
    """Returns the contents of sherpa-onnx's files by name.

    Raises RunError if the preprocessor's features differ from tfasr's.
    """
    carried = metadata(spec)
    return {
        PREPROCESSOR_FILE: checked_feature_graph(spec),
        ENCODER_FILE: encoder_graph(graph, spec.alphabet, carried),
        DECODER_FILE: decoder_graph(spec.alphabet, carried),
        TOKENS_FILE: token_lines(spec.alphabet).encode(),
    }


def _check_texts(source: BatchSource, texts: list[str], encoder: bytes, alphabet: Alphabet) -> None:
    running = onnx_session(encoder)
    positions = (utterance.position for utterance in source.split.utterances)
    expected = dict(zip(positions, texts, strict=True))
    different = []
    for batch in source.evaluation():
        arrays = (batch[name].numpy() for name in ("features", "feature_lengths", "positions"))
        for features, length, position in zip(*arrays, strict=True):
            inputs = {FEATURES: features[None, :length], LENGTHS: np.array([length], np.int32)}
            text = text_of_tokens(running.run(None, inputs)[0], alphabet)
            if text != expected[int(position)]:
                different.append((text, expected[int(position)]))
    # If two classes are about equally likely, either may win, depending on rounding.
    if len(different) > max(1, len(expected) // 200):
        text, wanted = different[0]
        raise RunError(
            f"The exported model must agree with the run's model. {len(different)} of "
            f"{len(expected)} utterances of {source.split.folder} differ, such as {text!r} instead "
            f"of {wanted!r}. Nothing was written; please report it."
        )


def card_form() -> dict[str, Any]:
    """Returns what `tfasr.exporting.export.Kind.form` returns."""
    flags = {
        "moonshine-preprocessor": PREPROCESSOR_FILE,
        "moonshine-encoder": ENCODER_FILE,
        "moonshine-uncached-decoder": DECODER_FILE,
        "moonshine-cached-decoder": DECODER_FILE,
        "tokens": TOKENS_FILE,
    }
    arguments = " ".join(f"--{name}={file}" for name, file in flags.items())
    return {
        "files": f"`{PREPROCESSOR_FILE}`, `{ENCODER_FILE}` and `{DECODER_FILE}` for "
        "[sherpa-onnx](https://github.com/k2-fsa/sherpa-onnx), as a Moonshine model",
        "commands": (f"sherpa-onnx-offline {arguments} recording.wav",),
        "streams": False,
        "limits": "Decoding is greedy, without confidences and word times. A recording is "
        "processed in one piece: cut long ones at pauses, as sherpa-onnx does with a voice "
        "activity detector.",
        "contents": f"`{PREPROCESSOR_FILE}` computes normalised features from samples, "
        f"`{ENCODER_FILE}` the text's tokens, which `{DECODER_FILE}` returns one by one; "
        f"`{TOKENS_FILE}` names them.",
    }


def encoder_graph(graph: bytes, alphabet: Alphabet, carried: dict[str, str]) -> bytes:
    """Returns the graph file that computes tokens from features.

    It maps ``features`` (1, frames, num_features) and ``lengths`` (1,) to ``tokens`` (1, numbers):
    the text's tokens, followed by so many end tokens that sherpa-onnx reads the whole text.
    """
    model = onnx.load_from_string(graph)
    inputs = {value.name: value for value in model.graph.input}
    writer = GraphWriter("text_")  # a prefix, because its nodes join the recogniser's
    writer.nodes, writer.weights = list(model.graph.node), list(model.graph.initializer)
    writer.opsets = list(model.opset_import)  # with int8 weights, also ONNX Runtime's own operators
    for name, value in inputs.items():
        if name not in (FEATURES, LENGTHS):
            units = value.type.tensor_type.shape.dim[2].dim_value
            writer.weight(name, np.zeros((1, 1, units), np.float32))
    _tokens(writer, _spaced_once(writer, _collapsed(writer, alphabet), alphabet))
    num_features = inputs[FEATURES].type.tensor_type.shape.dim[2].dim_value
    features = (FEATURES, TensorProto.FLOAT, [1, "frames", num_features])
    tokens = (TOKENS, TensorProto.INT64, [1, "numbers"])
    return writer.file("encoder", [features, (LENGTHS, TensorProto.INT32, [1])], [tokens], carried)


def decoder_graph(alphabet: Alphabet, carried: dict[str, str]) -> bytes:
    """Returns the graph file that returns the encoder's tokens one by one.

    Inputs: the previous token ``(1, 1)``, which is ignored; the encoder's tokens; and the position
    of the next token, counted from 1, ``(1,)``. Output: ``logits`` (1, 1, tokens), 1 for the next
    token and 0 for all others.
    """
    writer = GraphWriter()
    count = len(_NOT_CHARACTERS) + alphabet.blank_id
    tokens_read = writer.add("Sub", "position", writer.constant(1, np.int32))
    following = writer.add("Gather", TOKENS, tokens_read, axis=1)
    depth, values = writer.constant(count, np.int64), writer.constant([0.0, 1.0])
    writer.node("OneHot", [following, depth, values], "logits", axis=-1)
    inputs = [("before", TensorProto.INT32, [1, 1]), (TOKENS, TensorProto.INT64, [1, "numbers"])]
    inputs.append(("position", TensorProto.INT32, [1]))
    return writer.file("decoder", inputs, [("logits", TensorProto.FLOAT, [1, 1, count])], carried)


def token_lines(alphabet: Alphabet) -> str:
    symbols = [*_NOT_CHARACTERS, *(s.replace(_SPACE, WORD_START) for s in alphabet.symbols)]
    return "".join(f"{symbol} {number}\n" for number, symbol in enumerate(symbols))


def text_of_tokens(tokens: np.ndarray, alphabet: Alphabet) -> str:
    """Returns the text that sherpa-onnx makes of the tokens.

    If tokens are sub-word units, sherpa-onnx puts a space before the text, which is left out here.
    """
    ids = tokens.reshape(-1).tolist()
    first = len(_NOT_CHARACTERS)
    return alphabet.decode([token - first for token in ids[: ids.index(_END)]])


def _collapsed(writer: GraphWriter, alphabet: Alphabet) -> str:
    """Adds labels ``(labels,)``: the most probable path without repeats, blanks and separators."""
    best = writer.add("ArgMax", LOG_PROBS, axis=2, keepdims=0)
    path = writer.add("Reshape", best, writer.constant([-1], np.int64))
    blank = writer.constant([alphabet.blank_id], np.int64)
    is_repeat = writer.add("Equal", path, _shifted(writer, path, blank, 1))
    dropped = writer.add("Or", writer.add("Equal", path, blank), is_repeat)
    if alphabet.separator_id >= 0:
        separator = writer.constant([alphabet.separator_id], np.int64)
        dropped = writer.add("Or", dropped, writer.add("Equal", path, separator))
    return _without(writer, path, dropped)


def _spaced_once(writer: GraphWriter, labels: str, alphabet: Alphabet) -> str:
    """Removes repeated spaces, and spaces at the ends, from labels."""
    if _SPACE not in alphabet.characters:
        return labels
    if alphabet.units:
        bare = writer.constant([alphabet.symbols.index(WORD_START)], np.int64)
        begins = writer.constant(np.array(alphabet.word_starts), bool)
        followed = writer.add("Gather", begins, _shifted(writer, labels, bare, -1))
        superfluous = writer.add("And", writer.add("Equal", labels, bare), followed)
        return _without(writer, labels, superfluous)
    space = writer.constant([alphabet.characters.index(_SPACE)], np.int64)
    for step in (1, -1):
        after_space = writer.add("Equal", _shifted(writer, labels, space, step), space)
        dropped = writer.add("And", writer.add("Equal", labels, space), after_space)
        labels = _without(writer, labels, dropped)
    return labels


def _shifted(writer: GraphWriter, row: str, edge: str, step: int) -> str:
    """Shifts a row by one to the right (``step`` 1) or left (-1); ``edge`` fills the free place."""
    ends = (0, -1) if step == 1 else (1, np.iinfo(np.int64).max)
    inner = writer.add("Slice", row, *(writer.constant([end], np.int64) for end in ends))
    return writer.add("Concat", *([edge, inner] if step == 1 else [inner, edge]), axis=0)


def _without(writer: GraphWriter, row: str, dropped: str) -> str:
    return writer.add("Compress", row, writer.add("Not", dropped), axis=0)


def _tokens(writer: GraphWriter, labels: str) -> None:
    numbers = (len(_NOT_CHARACTERS), _NUMBERS_PER_TOKEN - 1, _NUMBERS_BEYOND, 0)
    offset, factor, beyond, axis = (writer.constant([number], np.int64) for number in numbers)
    characters = writer.add("Add", labels, offset)
    size = writer.add("Add", writer.add("Mul", writer.add("Shape", labels), factor), beyond)
    end = helper.make_tensor("end", TensorProto.INT64, [1], [_END])
    ends = writer.add("ConstantOfShape", size, value=end)
    writer.node("Unsqueeze", [writer.add("Concat", characters, ends, axis=0), axis], TOKENS)
