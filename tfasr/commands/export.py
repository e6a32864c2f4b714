"""``tfasr export``: a trained recogniser as files that other programs run."""

import argparse
import functools
from pathlib import Path

from tfasr.commands.shared import progress

EXAMPLE = "export --to onnx --run_dir runs/a --out exported"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags: the format, the run, where to write, what to compare on."""
    # Imported here, because tfasr help must not wait for readers of audio.
    from tfasr.recognising.spec import MODEL_FILES

    add = parser.add_argument
    add(
        "--to",
        choices=tuple(MODEL_FILES),
        required=True,
        help=(
            "onnx: a folder for ONNX Runtime and tfasr; litert: for LiteRT "
            "(TensorFlow Lite) and tfasr; keras: a .keras file; saved_model: for "
            "TensorFlow without Keras"
        ),
    )
    add("--run_dir", required=True, help="a folder that tfasr train wrote")
    add("--out", required=True, metavar="DIR", help="a new or empty folder")
    add(
        "--int8",
        action="store_true",
        help="large weight matrices in 8 bits: onnx, litert",
    )
    add("--checkpoint", default="best", help="best, last or a file")
    add(
        "--split",
        default="validation",
        help="to compare export and run on; default: %(default)s",
    )
    add("--shard_dir", help="where the split is; default: the run's shards")
    add("--data_licence", help="of the training data, for the model card")


def check(arguments: argparse.Namespace) -> None:
    """Raises UsageError if the format has no 8-bit form, or ``--out`` isn't empty."""
    from tfasr.kit.files import check_owned
    from tfasr.recognising.spec import check_int8

    check_int8(arguments.to, arguments.int8)
    check_owned(Path(arguments.out), "--out", "part of this export", owned=False)


def run(arguments: argparse.Namespace) -> None:
    """Exports a run and prints how the export compares with it on a split."""
    from tfasr.exporting.export import export
    from tfasr.scoring.summary import CONFIDENCE

    done = export(
        to=arguments.to,
        run_dir=arguments.run_dir,
        out=arguments.out,
        int8=arguments.int8,
        checkpoint=arguments.checkpoint,
        split=arguments.split,
        shard_dir=arguments.shard_dir,
        data_licence=arguments.data_licence,
        progress=functools.partial(progress, f"compared on {arguments.split}"),
    )

    # The sizes first, then whether the export computes the same.
    same = done.utterances - done.differing_texts
    print(
        f"{done.folder}: {done.bytes / 1e6:.2f} MB, "
        f"float32 is {done.float32_bytes / 1e6:.2f} MB"
    )
    print(
        f"{arguments.split}: {same} of {done.utterances} utterances have the run's "
        f"text, log-probabilities within {done.difference:.2g}; WER {done.wer:.2%}"
    )

    # Weights in 8 bits change the results: by how much, and what that gains.
    if done.int8 is not None:
        # Whole speakers are resampled if possible, since their utterances resemble
        # each other.
        interval = done.int8.by_speaker or done.int8.by_utterance
        ends = ""
        if interval is not None:
            low, high = interval.interval
            ends = f" ({CONFIDENCE:.0%}: {100 * low:+.2f} to {100 * high:+.2f})"

        points = 100 * done.int8.wer_difference
        print(f"int8 against float32: WER {points:+.2f} points{ends}")
        print(
            f"int8: {done.audio_s_per_s:.0f} times real time on one core, float32: "
            f"{done.float32_audio_s_per_s:.0f} (the model alone, given features; "
            "measured once)"
        )
