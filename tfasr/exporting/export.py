"""A run's recogniser as files that other programs run, and as good as the run's own model."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tfasr._version import __version__
from tfasr.config import to_json
from tfasr.data.pipeline import BatchSource
from tfasr.decoding.choice import load_lexicon
from tfasr.durable import make_folder, write_whole
from tfasr.errors import RunError, UsageError
from tfasr.exporting.check import Heard, differing_texts, hear, largest_difference
from tfasr.exporting.model_card import WORD_LIMITS, CardFacts, CardForm, model_card
from tfasr.recognising.acoustics import Acoustics
from tfasr.recognising.exported import CARD_FILE, GRAPH_FILE, ONNX, write_spec, write_sums
from tfasr.recognising.keras_acoustics import KerasAcoustics, open_run
from tfasr.recognising.onnx_acoustics import OnnxAcoustics
from tfasr.recognising.runtimes import open_exported
from tfasr.recognising.spec import RecogniserSpec
from tfasr.run_files import LEXICON_FILE
from tfasr.scoring.paired import PairedComparison, compare_pairs
from tfasr.scoring.summary import summarise_scored
from tfasr.training.trained import open_trained

FEATURES_FILE = "features.onnx"
MOST_DIFFERENCE = 1e-3
"""How far apart float32 log-probabilities may be: rounding, through hundreds of steps."""


@dataclass(frozen=True)
class CheckedGraph:
    """A graph that was compared with the run's own model.

    Attributes:
        float32: the file's content, with float32 weights.
        written: what the export writes: the same, or int8.
        of_run: what the run's model made of the split.
        of_float32: what the graph with float32 weights made of it.
        of_written: what the written one made of it.
    """

    float32: bytes
    written: bytes
    of_run: Heard
    of_float32: Heard
    of_written: Heard


@dataclass(frozen=True)
class Exported:
    """What an export wrote, and how it stands to the run's own model.

    Attributes:
        folder: what it wrote.
        bytes: of the graph.
        float32_bytes: of the same graph with float32 weights.
        utterances: on which the two were compared.
        difference: the largest one of their log-probabilities.
        differing_texts: how many utterances they write down differently, by greedy decoding.
        wer: of the exported model on these.
        int8: its WER against the float32 model's; None of a float32 export.
        audio_s_per_s: seconds of audio that the model alone hears in a second of one core; measured
            once, beside whatever else the machine did.
        float32_audio_s_per_s: likewise of the model with float32 weights.
    """

    folder: Path
    bytes: int
    float32_bytes: int
    utterances: int
    difference: float
    differing_texts: int
    wer: float
    int8: PairedComparison | None
    audio_s_per_s: float
    float32_audio_s_per_s: float


def export_onnx(
    *,
    run_dir: str | Path,
    out: str | Path,
    int8: bool = False,
    checkpoint: str = "best",
    split: str = "validation",
    shard_dir: str | Path | None = None,
    data_licence: str | None = None,
) -> Exported:
    """Writes a run's recogniser for ONNX Runtime into a new folder.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        out: a new or empty folder.
        int8: whether the weights of the large matrices become eight bits wide.
        checkpoint: "best" (by validation CER), "last", or a file.
        split: a prepared split, on whose speech the export is compared with the run's model.
        shard_dir: where it is; the run's own by default.
        data_licence: of the training data, for the model card.

    Raises:
        UsageError: if the run, its checkpoint or the split does not fit, the model is of a kind
            that has no graph here, or a package is missing.
        RunError: if the export does not say what the run's model says.
    """
    run_dir, out = Path(run_dir), Path(out)
    check_new(out)
    check_installed()
    trained = open_trained(run_dir)
    spec, acoustics = open_run(trained, checkpoint, {})
    check_has_graph(spec)
    source = trained.source(split, shard_dir)
    checked = checked_graph(spec, acoustics, source, int8=int8)
    features = _feature_graph(spec)
    make_folder(out)
    write_whole(out / GRAPH_FILE, checked.written)
    write_whole(out / FEATURES_FILE, features)
    facts = CardFacts(split, summarise_scored(checked.of_written.scored), int8, data_licence)
    write_whole(out / CARD_FILE, model_card(run_dir, spec, facts, _card_form(spec)))
    complete(out, run_dir, spec)
    open_exported(out, {})
    return exported(out, len(checked.written), checked)


def checked_graph(
    spec: RecogniserSpec, acoustics: KerasAcoustics, source: BatchSource, *, int8: bool
) -> CheckedGraph:
    """Returns a recogniser's graph in ONNX.

    Args:
        spec: of the recogniser.
        acoustics: the run's model.
        source: the split on whose speech the graph is compared with it.
        int8: whether the written graph has int8 weights.

    Raises:
        RunError: if the graph does not say what the model says.
    """

    def heard(model: Acoustics) -> Heard:
        return hear(source, model, spec.alphabet, acoustics.output_lengths)

    graph = graph_writer(spec.model)(
        acoustics.recogniser, spec.features.num_features, metadata(spec)
    )
    of_run, of_graph = heard(acoustics), heard(OnnxAcoustics(graph))
    check_agrees(largest_difference(of_run, of_graph), source)
    if not int8:
        return CheckedGraph(graph, graph, of_run, of_graph, of_graph)
    small = _quantised(graph)
    return CheckedGraph(graph, small, of_run, of_graph, heard(OnnxAcoustics(small)))


def exported(folder: Path, num_bytes: int, checked: CheckedGraph) -> Exported:
    """Returns what an export is, see `Exported`."""
    found = checked.of_written
    int8 = checked.written is not checked.float32
    return Exported(
        folder=folder,
        bytes=num_bytes,
        float32_bytes=num_bytes + len(checked.float32) - len(checked.written),
        utterances=len(found.scored),
        difference=largest_difference(checked.of_run, found),
        differing_texts=differing_texts(checked.of_run, found),
        wer=summarise_scored(found.scored).counts.wer,
        int8=compare_pairs(checked.of_float32.scored, found.scored) if int8 else None,
        audio_s_per_s=found.audio_s_per_s,
        float32_audio_s_per_s=checked.of_float32.audio_s_per_s,
    )


def write_unchecked(run_dir: Path, out: Path, *, int8: bool, checkpoint: str) -> None:
    """Writes an export to be measured, not compared with the run's model, without a model card.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        out: a new or empty folder.
        int8: as of `export_onnx`.
        checkpoint: as of `export_onnx`.

    Raises:
        UsageError: as `export_onnx`.
    """
    check_new(out)
    check_installed()
    spec, acoustics = open_run(open_trained(run_dir), checkpoint, {})
    num_features = spec.features.num_features
    graph = graph_writer(spec.model)(acoustics.recogniser, num_features, metadata(spec))
    make_folder(out)
    write_whole(out / GRAPH_FILE, _quantised(graph) if int8 else graph)
    complete(out, run_dir, spec)


def complete(out: Path, run_dir: Path, spec: RecogniserSpec, runtime: str = ONNX) -> None:
    """Writes what goes with a model that `runtime` runs; the hashes come last."""
    lexicon = load_lexicon(run_dir) if (run_dir / LEXICON_FILE).exists() else []
    write_spec(out, spec, lexicon, runtime)
    write_sums(out)


def check_new(out: Path) -> None:
    """Raises UsageError unless a folder is new or empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            f"--out must be a new or empty folder. Received: {out}, which is not. Choose another."
        )


def check_installed() -> None:
    """Raises UsageError before any work if a package that it needs is missing."""
    lacking = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
    if lacking:
        raise UsageError(
            f"The export needs {' and '.join(lacking)}, which is not installed: pip install "
            "'tfasr[export]'."
        )


def check_has_graph(spec: RecogniserSpec) -> None:
    """Raises UsageError for a model of a kind that has no graph here."""
    graph_writer(spec.model)


def _feature_graph(spec: RecogniserSpec) -> bytes:
    from tfasr.exporting.feature_graph import checked_feature_graph

    return checked_feature_graph(spec, metadata(spec))


_CARD_STATES = "; it also takes the recurrence's states, and returns the next ones"


def _card_form(spec: RecogniserSpec) -> CardForm:
    return CardForm(
        files=f"`{GRAPH_FILE}`",
        commands=("pip install 'tfasr[export]'", "tfasr transcribe recording.wav --run_dir ."),
        streams=spec.can_stream,
        limits=WORD_LIMITS,
        contents="`recogniser.json` says how features are computed and normalised, `alphabet.json` "
        f"names the classes (the CTC blank comes last). `{GRAPH_FILE}` takes `features` (float32: "
        f"batch, frames, {spec.features.num_features}) and `lengths` (int32: batch), and returns "
        f"`log_probs` and `output_lengths`{_CARD_STATES if spec.streams else ''}. "
        f"`{FEATURES_FILE}` takes `samples` (float32 in -1..1 at {spec.features.sample_rate_hz} "
        "Hz: batch, samples) and returns these `features`, for programs that do not compute them.",
    )


def graph_writer(model: str) -> Callable[..., bytes]:
    """Returns what writes the graph of a model of a name in `tfasr.models.recogniser.MODELS`.

    Raises:
        UsageError: if it has none.
    """
    writers = {
        "acoustic_model": ("onnx_graph", "recurrent_graph"),
        "gru": ("onnx_graph", "recurrent_graph"),
        "separable_conv": ("onnx_separable", "separable_graph"),
        "conformer": ("onnx_conformer", "conformer_graph"),
        "deep_speech_2": ("onnx_deep_speech_2", "deep_speech_2_graph"),
    }
    if model not in writers:
        raise UsageError(
            f"A model that is exported to ONNX must be one of {', '.join(writers)}. Received: "
            f"{model!r}. Export it --to saved_model or --to keras."
        )
    module, name = writers[model]
    return getattr(import_module(f"tfasr.exporting.{module}"), name)


def metadata(spec: RecogniserSpec) -> dict[str, str]:
    """Returns what a graph itself carries, for programs that see nothing else."""
    return {
        "model_type": f"tfasr_{spec.model}",
        "version": __version__,
        "features": json.dumps(to_json(spec.features)),
        "window_samples": str(spec.features.window_samples),
        "step_samples": str(spec.features.step_samples),
        "normalisation": spec.features.normalisation,
        "characters": spec.alphabet.characters,
        "separator": spec.alphabet.separator or "",
        "blank_id": str(spec.alphabet.blank_id),
        "kernel_frames": str(spec.geometry[0]),
        "stride_frames": str(spec.geometry[1]),
    }


def check_agrees(difference: float, source: BatchSource) -> None:
    """Raises RunError if log-probabilities differ by more than rounding."""
    if not difference <= MOST_DIFFERENCE:
        raise RunError(
            "An exported model must say what the run's model says. On the utterances of "
            f"{source.split.folder} their log-probabilities differ by up to {difference:.3g}, more "
            f"than {MOST_DIFFERENCE:g}. Nothing was written; please report it."
        )


def _quantised(graph: bytes) -> bytes:
    from tfasr.exporting.quantise import quantised

    return quantised(graph)
