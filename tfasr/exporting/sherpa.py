"""A run's recogniser as a model that sherpa-onnx runs, as it is."""

from pathlib import Path

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.data.pipeline import BatchSource
from tfasr.durable import make_folder, write_whole
from tfasr.errors import RunError, UsageError
from tfasr.exporting.check import Heard, session
from tfasr.exporting.export import (
    Exported,
    check_has_graph,
    check_installed,
    check_new,
    checked_graph,
    exported,
    metadata,
)
from tfasr.exporting.model_card import CardFacts, CardForm, model_card
from tfasr.recognising.exported import CARD_FILE, write_sums
from tfasr.recognising.keras_acoustics import open_run
from tfasr.recognising.onnx_acoustics import FEATURES, LENGTHS
from tfasr.recognising.spec import RecogniserSpec
from tfasr.scoring.summary import summarise_scored
from tfasr.training.trained import open_trained

PREPROCESSOR_FILE = "preprocess.onnx"
ENCODER_FILE = "encode.onnx"
DECODER_FILE = "decode.onnx"
TOKENS_FILE = "tokens.txt"
SAMPLE_RATE_HZ = 16000
"""To which sherpa-onnx resamples all that such a model hears."""


def export_sherpa(
    *,
    run_dir: str | Path,
    out: str | Path,
    int8: bool = False,
    checkpoint: str = "best",
    split: str = "validation",
    shard_dir: str | Path | None = None,
    data_licence: str | None = None,
) -> Exported:
    """Writes a run's recogniser for sherpa-onnx into a new folder; decoding is greedy.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        out: a new or empty folder.
        int8: as of `tfasr.exporting.export.export_onnx`.
        checkpoint: "best" (by validation CER), "last", or a file.
        split: a prepared split, on whose speech the export is compared with the run's model.
        shard_dir: where it is; the run's own by default.
        data_licence: of the training data, for the model card.

    Raises:
        UsageError: if the run, its checkpoint or the split does not fit, the model is of a kind
            that has no graph here or hears another rate, or a package is missing.
        RunError: if the export does not say what the run's model says.
    """
    run_dir, out = Path(run_dir), Path(out)
    check_new(out)
    check_installed()
    trained = open_trained(run_dir)
    spec, acoustics = open_run(trained, checkpoint, {})
    check_has_graph(spec)
    _check_rate(spec)
    source = trained.source(split, shard_dir)
    checked = checked_graph(spec, acoustics, source, int8=int8)
    files = sherpa_files(spec, checked.written)
    _check_texts(source, checked.of_written, files[ENCODER_FILE], spec.alphabet)
    make_folder(out)
    for name, content in files.items():
        write_whole(out / name, content)
    facts = CardFacts(split, summarise_scored(checked.of_written.scored), int8, data_licence)
    write_whole(out / CARD_FILE, model_card(run_dir, spec, facts, _card_form()))
    write_sums(out)
    num_bytes = sum(len(content) for name, content in files.items() if name != TOKENS_FILE)
    return exported(out, num_bytes, checked)


def sherpa_files(spec: RecogniserSpec, graph: bytes) -> dict[str, bytes]:
    """Returns what sherpa-onnx reads: contents by the names of the files.

    Args:
        spec: of the recogniser.
        graph: its graph, as `tfasr.exporting.export.checked_graph` wrote it.

    Raises:
        RunError: if the graph of its features computes anything else.
    """
    from tfasr.exporting.feature_graph import checked_feature_graph
    from tfasr.exporting.sherpa_graphs import decoder_graph, encoder_graph, token_lines

    carried = metadata(spec)
    return {
        PREPROCESSOR_FILE: checked_feature_graph(spec, carried),
        ENCODER_FILE: encoder_graph(graph, spec.alphabet, carried),
        DECODER_FILE: decoder_graph(spec.alphabet, carried),
        TOKENS_FILE: token_lines(spec.alphabet).encode(),
    }


def _check_rate(spec: RecogniserSpec) -> None:
    if spec.features.sample_rate_hz != SAMPLE_RATE_HZ:
        raise UsageError(
            f"A model for sherpa-onnx must hear {SAMPLE_RATE_HZ} Hz, the rate that it is given. "
            f"Received: FeatureConfig.sample_rate_hz {spec.features.sample_rate_hz}. Export it "
            "for ONNX Runtime: --to onnx."
        )


def _check_texts(source: BatchSource, heard: Heard, encoder: bytes, alphabet: Alphabet) -> None:
    """Raises RunError unless the encoder writes what its log-probabilities say."""
    from tfasr.exporting.sherpa_graphs import text_of_tokens

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


def _card_form() -> CardForm:
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
