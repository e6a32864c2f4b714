"""Whether all runtimes write the same text: Keras, its export, C++; streams.

    python benchmarks/runtimes.py --run_dir RUN --corpus tsv --corpus_dir DIR --split validation \
        [--cpp examples/cpp/stream] [--corpus_statistics] [--format json]

All get the same 16-bit samples at the model's rate and decode greedily; streams get
them in random chunks. Rows are compared with the first one. C++ is left out without
--cpp, and streams if features are normalised per utterance. With --corpus_statistics,
all rows normalise by the training split's mean and deviation instead. For a run that
was not trained so, this makes the errors meaningless, but not the comparison.
"""

import argparse
import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tfasr.corpora.corpus import read_split
from tfasr.data.audio import read_audio
from tfasr.exporting.export import FEATURES_FILE, write_unchecked
from tfasr.exporting.onnx import checked_feature_graph
from tfasr.kit.process import load_tensorflow
from tfasr.recognising.recogniser import Recogniser
from tfasr.recognising.runtimes import OnnxAcoustics
from tfasr.recognising.spec import GRAPH_FILE, RecogniserSpec
from tfasr.recognising.tensorflow_runtimes import open_run
from tfasr.scoring.errors import count_errors
from tfasr.training.run_folder import load_feature_statistics
from tfasr.training.trained import open_trained

Engine = Callable[[np.ndarray], str]


def offline(recogniser: Recogniser) -> Engine:
    """Transcribes a recording as a whole."""
    return lambda samples: recogniser.transcribe(samples).text


def streamed(recogniser: Recogniser, rng: np.random.Generator) -> Engine:
    """Transcribes a recording in chunks of random lengths."""

    def text(samples: np.ndarray) -> str:
        cuts = np.sort(rng.integers(0, len(samples), rng.integers(0, 60)))
        return list(recogniser.stream(np.split(samples, cuts)))[-1].text

    return text


def cpp(program: Path, folder: Path, rng: np.random.Generator) -> Engine:
    """Transcribes a recording by the C++ program, in chunks of a random length."""

    def text(samples: np.ndarray) -> str:
        command = [program.resolve(), folder, str(rng.integers(1, 8000))]
        pcm = samples.astype("<i2").tobytes()
        done = subprocess.run(command, input=pcm, capture_output=True, check=True)

        return " ".join(done.stdout.decode().split())

    return text


def engines(
    run_dir: Path,
    spec: RecogniserSpec,
    keras: Recogniser,
    program: Path | None,
    folder: Path,
) -> dict[str, Engine]:
    """Returns functions from samples to text, by the names of the table's rows."""
    rng = np.random.default_rng(1)
    exported = folder / "onnx"
    write_unchecked(run_dir, exported, int8=False, checkpoint="best")
    features = checked_feature_graph(spec)
    (exported / FEATURES_FILE).write_bytes(features)

    onnx = Recogniser(spec, OnnxAcoustics(exported / GRAPH_FILE))
    outcome = {
        "transcribe, Keras": offline(keras),
        "transcribe, ONNX Runtime": offline(onnx),
    }
    if not spec.can_stream:
        return outcome

    outcome["stream, Keras"] = streamed(keras, rng)
    outcome["stream, ONNX Runtime"] = streamed(onnx, rng)
    if program is not None:
        outcome["stream, C++"] = cpp(program, exported, rng)

    return outcome


def as_int16(samples: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(samples * 2**15), -(2**15), 2**15 - 1).astype(np.int16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run_dir", type=Path, required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--corpus_dir", type=Path, required=True)
    parser.add_argument("--manifest")
    parser.add_argument("--split", default="test")
    parser.add_argument("--cpp", type=Path, help="the program of examples/cpp")
    parser.add_argument("--corpus_statistics", action="store_true")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    arguments = parser.parse_args()

    load_tensorflow()

    spec, acoustics = open_run(
        open_trained(arguments.run_dir), "best", {"name": "greedy"}
    )
    if arguments.corpus_statistics:
        by_corpus = dataclasses.replace(spec.features, normalisation="corpus")
        statistics = load_feature_statistics(arguments.run_dir)
        spec = dataclasses.replace(spec, features=by_corpus, statistics=statistics)

    utterances = read_split(
        arguments.corpus,
        arguments.corpus_dir,
        arguments.split,
        manifest=arguments.manifest,
    ).utterances
    rate_hz = spec.features.sample_rate_hz
    recognised = [as_int16(read_audio(item.audio_path, rate_hz)) for item in utterances]
    references = [item.text for item in utterances]
    rows = []
    first = None

    with tempfile.TemporaryDirectory() as folder:
        keras = Recogniser(spec, acoustics)
        for name, text in engines(
            arguments.run_dir, spec, keras, arguments.cpp, Path(folder)
        ).items():
            texts = [text(samples) for samples in recognised]
            first = first or texts
            wer = count_errors(references, texts).wer
            same = sum(a == b for a, b in zip(first, texts, strict=True))
            rows.append({"runtime": name, "same": same, "of": len(texts), "wer": wer})

    if arguments.format == "json":
        print(json.dumps(rows, indent=1))
        return

    print("| | utterances with the first row's text | WER % |\n|---|---:|---:|")
    for row in rows:
        same = f"{row['same']} of {row['of']}"
        print(f"| {row['runtime']} | {same} | {100 * row['wer']:.2f} |")


if __name__ == "__main__":
    main()
