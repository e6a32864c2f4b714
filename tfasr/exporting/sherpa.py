"""A recogniser in the three graphs that sherpa-onnx runs as a Moonshine model.

Among sherpa-onnx's models for samples at 16 kHz, only Moonshine receives raw samples: sherpa-onnx
calls a preprocessor (samples to features), an encoder, and a decoder once per token until the text
ends. Here the encoder writes the whole text, greedily, and the decoder reads it out: neither needs
more weights than the recogniser has.

Source: sherpa-onnx 2.0.1, csrc/offline-moonshine-model.cc and
offline-moonshine-greedy-search-decoder.cc.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tfasr.alphabet import Alphabet
from tfasr.data.batches import BatchSource
from tfasr.errors import RunError, UsageError
from tfasr.exporting.check import CardForm, Heard, session
from tfasr.exporting.features import checked_feature_graph
from tfasr.exporting.onnx import GraphWriter, metadata
from tfasr.kit.files import write_whole
from tfasr.recognising.spec import FEATURES, LENGTHS, LOG_PROBS, RecogniserSpec

PREPROCESSOR_FILE = "preprocess.onnx"
ENCODER_FILE = "encode.onnx"
DECODER_FILE = "decode.onnx"
TOKENS_FILE = "tokens.txt"
SAMPLE_RATE_HZ = 16000
"""To which sherpa-onnx resamples all that such a model hears."""

TOKENS = "tokens"
_SPACE = " "
_SPACE_TOKEN = "\N{LOWER ONE EIGHTH BLOCK}"  # which sherpa-onnx shows as a space
_NOT_CHARACTERS = ("<unk>", "<s>", "</s>")  # their ids are fixed; the characters' follow
_END = _NOT_CHARACTERS.index("</s>")
# sherpa-onnx takes at most 6 tokens for 384 x 16000 numbers that the encoder gives, rounded down.
# So many more numbers than tokens let it take them all.
_NUMBERS_PER_TOKEN, _NUMBERS_BEYOND = 7, 8


def write_sherpa(
    folder: Path, spec: RecogniserSpec, model: Path, source: BatchSource, heard: Heard
) -> int:
    """Writes sherpa-onnx's files and returns their graphs' bytes; RunError if a text differs."""
    files = sherpa_files(spec, model.read_bytes())
    _check_texts(source, heard, files[ENCODER_FILE], spec.alphabet)
    for name, content in files.items():
        write_whole(folder / name, content)
    return sum(len(content) for name, content in files.items() if name != TOKENS_FILE)


def sherpa_files(spec: RecogniserSpec, graph: bytes) -> dict[str, bytes]:
    """The contents of sherpa-onnx's files by name; RunError if the features' graph is wrong."""
    carried = metadata(spec)
    return {
        PREPROCESSOR_FILE: checked_feature_graph(spec),
        ENCODER_FILE: encoder_graph(graph, spec.alphabet, carried),
        DECODER_FILE: decoder_graph(spec.alphabet, carried),
        TOKENS_FILE: token_lines(spec.alphabet).encode(),
    }


def check_rate(spec: RecogniserSpec) -> None:
    """Raises UsageError for a recogniser at another sample rate than sherpa-onnx's."""
    if spec.features.sample_rate_hz != SAMPLE_RATE_HZ:
        raise UsageError(
            f"A model for sherpa-onnx must hear {SAMPLE_RATE_HZ} Hz, the rate that it is given. "
            f"Received: FeatureConfig.sample_rate_hz {spec.features.sample_rate_hz}. Export it "
            "for ONNX Runtime: --to onnx."
        )


def _check_texts(source: BatchSource, heard: Heard, encoder: bytes, alphabet: Alphabet) -> None:
    """Raises RunError unless the encoder's texts are those of its log-probabilities."""
    running = session(encoder)
    expected = {
        utterance.position: scored.transcript.hypothesis
        for utterance, scored in zip(source.split.utterances, heard.scored, strict=True)
    }
    different = []
    for batch in source.evaluation():
        arrays = (batch[name].numpy() for name in ("features", "feature_lengths", "positions"))
        for features, length, position in zip(*arrays, strict=True):
            inputs = {FEATURES: features[None, :length], LENGTHS: np.array([length], np.int32)}
            text = text_of_tokens(running.run(None, inputs)[0], alphabet)
            if text != expected[int(position)]:
                different.append((text, expected[int(position)]))
    # A frame on which two classes are alike may be rounded either way in a batch and alone.
    if len(different) > max(1, len(expected) // 200):
        found, wanted = different[0]
        raise RunError(
            "An exported model must write what the run's model writes. Of the utterances of "
            f"{source.split.folder} {len(different)} of {len(expected)} differ, such as {found!r} "
            f"instead of {wanted!r}. Nothing was written; please report it."
        )


def card_form() -> CardForm:
    flags = {
        "moonshine-preprocessor": PREPROCESSOR_FILE,
        "moonshine-encoder": ENCODER_FILE,
        "moonshine-uncached-decoder": DECODER_FILE,
        "moonshine-cached-decoder": DECODER_FILE,
        "tokens": TOKENS_FILE,
    }
    given = " ".join(f"--{name}={file}" for name, file in flags.items())
    return CardForm(
        files=f"`{PREPROCESSOR_FILE}`, `{ENCODER_FILE}` and `{DECODER_FILE}` for "
        "[sherpa-onnx](https://github.com/k2-fsa/sherpa-onnx), which takes it for a Moonshine "
        "model",
        commands=(f"sherpa-onnx-offline {given} recording.wav",),
        streams=False,
        limits="Decoding is greedy; there are no confidences and no word times. A recording goes "
        "through it in one piece: cut long ones at pauses, as sherpa-onnx does with a voice "
        "activity detector.",
        contents=f"`{PREPROCESSOR_FILE}` computes normalised features of samples, "
        f"`{ENCODER_FILE}` the text's tokens, which `{DECODER_FILE}` hands over one by one; "
        f"`{TOKENS_FILE}` names them.",
    )


def encoder_graph(graph: bytes, alphabet: Alphabet, carried: dict[str, str]) -> bytes:
    """The file of the graph from features to tokens.

    From ``features`` (1, frames, num_features) and ``lengths`` (1,) to ``tokens`` (1, numbers): the
    text's tokens, followed by more end tokens than sherpa-onnx reads.
    """
    model = onnx.load_from_string(graph)
    inputs = {one.name: one for one in model.graph.input}
    writer = GraphWriter()
    writer.nodes, writer.weights = list(model.graph.node), list(model.graph.initializer)
    writer.opsets = list(model.opset_import)  # int8 weights bring ONNX Runtime's own operators
    for name, value in inputs.items():
        if name not in (FEATURES, LENGTHS):
            units = value.type.tensor_type.shape.dim[2].dim_value
            writer.weight(name, np.zeros((1, 1, units), np.float32))
    _tokens(writer, _spaced_once(writer, _collapsed(writer, alphabet), alphabet))
    num_features = inputs[FEATURES].type.tensor_type.shape.dim[2].dim_value
    shape = [1, "frames", num_features]
    return writer.file(
        "encoder",
        [(FEATURES, TensorProto.FLOAT, shape), (LENGTHS, TensorProto.INT32, [1])],
        [(TOKENS, TensorProto.INT64, [1, "numbers"])],
        carried,
    )


def decoder_graph(alphabet: Alphabet, carried: dict[str, str]) -> bytes:
    """The file of the graph that reads out the encoder's tokens.

    From the previous token ``(1, 1)``, which it ignores, the encoder's tokens and the number of
    tokens read plus one ``(1,)``, to ``logits`` (1, 1, tokens): 1 for the next token.
    """
    writer = GraphWriter()
    count = len(_NOT_CHARACTERS) + len(alphabet.characters)
    one = writer.weight("one", np.array(1, np.int32))
    read = writer.node("Sub", ["position", one], "read")
    following = writer.node("Gather", [TOKENS, read], "following", axis=1)
    depth = writer.weight("count", np.array(count, np.int64))
    values = writer.weight("no_and_yes", np.array([0.0, 1.0]))
    writer.node("OneHot", [following, depth, values], "logits", axis=-1)
    return writer.file(
        "decoder",
        [
            ("before", TensorProto.INT32, [1, 1]),
            (TOKENS, TensorProto.INT64, [1, "numbers"]),
            ("position", TensorProto.INT32, [1]),
        ],
        [("logits", TensorProto.FLOAT, [1, 1, count])],
        carried,
    )


def token_lines(alphabet: Alphabet) -> str:
    """The file of tokens: a symbol and its number per line."""
    characters = [_SPACE_TOKEN if one == _SPACE else one for one in alphabet.characters]
    symbols = [*_NOT_CHARACTERS, *characters]
    return "".join(f"{symbol} {number}\n" for number, symbol in enumerate(symbols))


def text_of_tokens(tokens: np.ndarray, alphabet: Alphabet) -> str:
    """The text that sherpa-onnx makes of the encoder's tokens."""
    ids = tokens.reshape(-1).tolist()
    first = len(_NOT_CHARACTERS)
    return "".join(alphabet.characters[one - first] for one in ids[: ids.index(_END)])


def _collapsed(writer: GraphWriter, alphabet: Alphabet) -> str:
    """Adds the most probable path without repeats, blanks and separators ``(labels,)``."""
    best = writer.node("ArgMax", [LOG_PROBS], "best", axis=2, keepdims=0)
    one_row = writer.weight("one_row", np.array([-1], np.int64))
    path = writer.node("Reshape", [best, one_row], "path")
    blank = writer.weight("blank", np.array([alphabet.blank_id], np.int64))
    silent = [writer.node("Equal", [path, blank], "is_blank")]
    silent.append(writer.node("Equal", [path, _shifted(writer, path, blank, 1)], "is_repeat"))
    if alphabet.separator is not None:
        number = alphabet.characters.index(alphabet.separator)
        separator = writer.weight("separator", np.array([number], np.int64))
        silent.append(writer.node("Equal", [path, separator], "is_separator"))
    dropped = silent[0]
    for number, other in enumerate(silent[1:]):
        dropped = writer.node("Or", [dropped, other], f"dropped_{number}")
    return _without(writer, path, dropped, "labels")


def _spaced_once(writer: GraphWriter, labels: str, alphabet: Alphabet) -> str:
    """Adds labels with single spaces only, and none at the beginning and end."""
    if _SPACE not in alphabet.characters:
        return labels
    number = alphabet.characters.index(_SPACE)
    space = writer.weight("space", np.array([number], np.int64))
    for step, name in ((1, "spaced_once"), (-1, "trimmed")):
        neighbours = _shifted(writer, labels, space, step)
        is_space = writer.node("Equal", [labels, space], f"{labels}_are_spaces")
        beside = writer.node("Equal", [neighbours, space], f"{labels}_beside_spaces")
        dropped = writer.node("And", [is_space, beside], f"{labels}_to_drop")
        labels = _without(writer, labels, dropped, name)
    return labels


def _shifted(writer: GraphWriter, row: str, edge: str, step: int) -> str:
    """Adds each number's neighbour before (1) or after (-1) it in a row, `edge` at the end."""
    ends = (0, -1) if step == 1 else (1, np.iinfo(np.int64).max)
    limits = [
        writer.weight(f"{row}_{name}", np.array([end], np.int64))
        for name, end in zip(("from", "to"), ends, strict=True)
    ]
    inner = writer.node("Slice", [row, *limits], f"{row}_inner")
    parts = [edge, inner] if step == 1 else [inner, edge]
    return writer.node("Concat", parts, f"{row}_shifted", axis=0)


def _without(writer: GraphWriter, row: str, dropped: str, name: str) -> str:
    kept = writer.node("Not", [dropped], f"{name}_kept")
    return writer.node("Compress", [row, kept], name, axis=0)


def _tokens(writer: GraphWriter, labels: str) -> None:
    """Adds the labels' tokens followed by end tokens ``(1, numbers)``."""
    offset = writer.weight("characters_from", np.array([len(_NOT_CHARACTERS)], np.int64))
    characters = writer.node("Add", [labels, offset], "characters")
    factor = writer.weight("more", np.array([_NUMBERS_PER_TOKEN - 1], np.int64))
    beyond = writer.weight("beyond", np.array([_NUMBERS_BEYOND], np.int64))
    size = writer.node("Shape", [labels], "num_labels")
    size = writer.node("Add", [writer.node("Mul", [size, factor], "more_labels"), beyond], "ends")
    end = helper.make_tensor("end", TensorProto.INT64, [1], [_END])
    ends = writer.node("ConstantOfShape", [size], "end_tokens", value=end)
    row = writer.node("Concat", [characters, ends], "token_row", axis=0)
    batch = writer.weight("batch_axis", np.array([0], np.int64))
    writer.node("Unsqueeze", [row, batch], TOKENS)
