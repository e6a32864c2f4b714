"""Runs an example of `examples/recorder`, fails in the midst of it, and runs it again.

``python -m tests.adapters.interrupted EXAMPLE RUN_DIR STEPS``: fails instead of the
step after STEPS, and writes what the callback said of a trainer and a recorder that
differ.
"""

import importlib.util
import sys
from pathlib import Path

import tfasr

EXAMPLES = Path(__file__).parents[2] / "examples" / "recorder"


class PowerCut(BaseException):
    """What no framework expects."""


def main(name: str, run_dir: str, steps: int) -> None:
    """Interrupts an example once."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    step = tfasr.Recorder.step

    def failing(run, **amounts):
        if run.steps_done == steps:
            raise PowerCut

        return step(run, **amounts)

    tfasr.Recorder.step = failing
    try:
        example.main(run_dir)
    except PowerCut:
        print("interrupted", flush=True)

    tfasr.Recorder.step = step
    example.main(run_dir)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
