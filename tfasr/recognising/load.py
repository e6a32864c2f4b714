"""From a run's folder or an exported one to a recogniser."""

from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.errors import UsageError
from tfasr.quiet import load_tensorflow
from tfasr.recognising.exported import SPEC_FILE, is_exported
from tfasr.run_files import EXPERIMENT_FILE

if TYPE_CHECKING:
    from tfasr.recognising.recogniser import Recogniser


def load_recogniser(
    run_dir: str | Path,
    *,
    checkpoint: str = "best",
    decoder: str | None = None,
    beam_width: int | None = None,
    recombine: bool | None = None,
) -> "Recogniser":
    """Returns a trained recogniser, ready to transcribe.

    It computes in float32, whatever precision the run was trained in. That of a folder that was
    exported to ONNX or LiteRT does not load TensorFlow.

    Args:
        run_dir: a folder that `tfasr train` or `tfasr export` wrote.
        checkpoint: of a run: "best" (by validation CER), "last", or a file.
        decoder: "greedy", "beam" or "word_beam"; the run's own by default.
        beam_width: of the decoder; the run's own by default.
        recombine: of word beam search; the run's own by default.

    Raises:
        UsageError: if the folder holds no run, or no checkpoint, or something in it does not fit.
    """
    from tfasr.recognising.recogniser import Recogniser

    run_dir = Path(run_dir)
    changes = {"name": decoder, "beam_width": beam_width, "recombine": recombine}
    changes = {name: value for name, value in changes.items() if value is not None}
    if is_exported(run_dir):
        from tfasr.recognising.runtimes import open_exported

        return Recogniser(*open_exported(run_dir, changes))
    if not (run_dir / EXPERIMENT_FILE).is_file():
        raise UsageError(
            f"--run_dir must be a folder that tfasr train or tfasr export wrote. Received: "
            f"{run_dir}, which has neither {EXPERIMENT_FILE} nor {SPEC_FILE}."
        )
    load_tensorflow()
    from tfasr.recognising.tensorflow_runtimes import open_run
    from tfasr.training.trained import open_trained

    return Recogniser(*open_run(open_trained(run_dir), checkpoint, changes))
