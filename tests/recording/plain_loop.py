"""A training loop of a few lines, without a framework: run as a program, it is there to be killed.

``python -m tests.recording.plain_loop RUN_DIR EPOCHS STEP_S LAST``: waits after the step LAST.
"""

import json
import sys
import time
from pathlib import Path

import tfasr

STEPS = 5


def train(run_dir: Path, epochs: int, step_s: float, last: int | None = None) -> None:
    """Comes nearer to 3 with every step; its checkpoint is one number."""
    checkpoint = run_dir.with_suffix(".json")
    with tfasr.Recorder(
        run_dir, train_samples=20, targets=[("loss", 0.01)], seed=1
    ) as run:
        if run.resumed_from_step:
            weight = json.loads(checkpoint.read_text())["weight"]
        else:
            weight = 0.0

        for _ in range(run.epochs_done, epochs):
            run.epoch()
            for _ in range(STEPS):
                with run.step(utterances=4) as step:
                    time.sleep(step_s)
                    weight += 0.2 * (3 - weight)
                    step.loss = (3 - weight) ** 2

                if run.steps_done == last:
                    print(f"step {last}", flush=True)
                    time.sleep(600)

            with run.evaluation() as e:
                e.measure(loss=(3 - weight) ** 2)

            partial = checkpoint.with_suffix(".partial")
            partial.write_text(json.dumps({"weight": weight}))
            partial.replace(checkpoint)
            run.checkpoint()


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
