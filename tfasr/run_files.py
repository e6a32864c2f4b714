"""What lies in a run's folder: the name of every file, written once.

What each holds: the module that writes it says.
"""

from pathlib import Path

EVENTS_FILE = "events.jsonl"
"""The ledger: every event, append-only; see `tfasr.ledger`."""
WORKER_EVENTS = "events-worker-*.jsonl"
"""What each worker of a cluster notes of its steps; see `worker_events_file`."""
HEARTBEAT_FILE = "heartbeat"
"""Touched while the run lives; tells how long a killed session lasted."""
LOCK_FILE = "lock"
"""Held by the process that writes the run, and gone afterwards."""
EXPERIMENT_FILE = "experiment.json"
"""The configs of the experiment, see `tfasr.training.experiment.Experiment`."""
RECORDER_FILE = "recorder.json"
"""The settings of a run that `tfasr.Recorder` wrote."""
ALPHABET_FILE = "alphabet.json"
"""The model's classes, see `tfasr.alphabet.Alphabet`."""
RUN_FILE = "run.json"
"""Facts about the data, the software and the machine."""
PLUGINS_FILE = "plugins.json"
"""The modules outside tfasr that the run was trained with, see `tfasr.plugins`."""
LEXICON_FILE = "lexicon.txt"
"""The training transcripts' words, one a line."""
GIN_GIVEN_FILE = "config.gin"
"""The configuration as given, includes in place."""
GIN_OPERATIVE_FILE = "operative_config.gin"
"""Every value in use."""
CHECKPOINTS_FOLDER = "checkpoints"
"""Holds ``step-NNNNNNNN.npz`` and `BEST_CHECKPOINT`."""
BEST_CHECKPOINT = "best.npz"
"""The weights with the lowest CER on the validation split."""
HYPOTHESES_FOLDER = "hypotheses"
"""Holds what each evaluation's decoder wrote, as JSON lines."""
CPU_FILE = "cpu.csv"
"""How busy the processor was, over time."""
GPU_FILE = "gpu.csv"
"""How busy the GPUs were, over time."""
ENERGY_FILE = "energy.csv"
"""What energy counters showed, over time."""
PROGRESS_FILE = "progress.json"
"""Where the run stands now, for whoever watches it."""


def worker_events_file(rank: int) -> str:
    """Returns the name of the file in which a worker of a cluster notes its steps."""
    return WORKER_EVENTS.replace("*", str(rank))


def hypotheses_file(run_dir: Path, epoch: int) -> Path:
    """Returns the file of the hypotheses of an epoch's evaluation."""
    return run_dir / HYPOTHESES_FOLDER / f"validation-epoch-{epoch:04d}.jsonl"
