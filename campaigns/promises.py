"""What tfasr promises of files after a power loss, and whether a disk's state keeps it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns.disk_states import Disk
from campaigns.operations import Operation
from campaigns.small_work import CONFIGURATIONS, SmallWork


@dataclass
class Promised:
    """What a power loss may no longer take away.

    Attributes:
        step: of the newest checkpoint whose name was synced; 0 before the first.
        lines: of the ledger, when it was last synced.
        whole: names of files that were published.
    """

    step: int = 0
    lines: int = 0
    whole: frozenset[str] = frozenset()

    def after(self, operation: Operation, disk: Disk) -> "Promised":
        """Returns what is promised once an operation was done."""
        path = operation.path
        if operation.kind == "unlink":  # by tfasr's own wish, whether it lasts or not
            return Promised(self.step, self.lines, self.whole - {path})
        if operation.kind != "sync":
            return self
        state = disk.now()
        if path.endswith("events.jsonl"):
            content = state.get(path)
            return Promised(
                self.step, content.count(b"\n") if content else 0, self.whole
            )

        if path and state.get(path, b"") is not None:
            return self
        names = [name for name in state if name.rpartition("/")[0] == path]
        steps = [
            int(name[-12:-4])
            for name in names
            if "/step-" in name and name[-4:] == ".npz"
        ]
        whole = {
            name for name in names if name.endswith(("index.json", "hypotheses.jsonl"))
        }
        kept = {name for name in self.whole if name.rpartition("/")[0] != path}
        return Promised(max([self.step, *steps]), self.lines, frozenset(whole | kept))


class Checker:
    """Opens states as tfasr does, in a process of its own that may use TensorFlow."""

    def __init__(self, work: SmallWork):
        from tfasr.data.shards import content_hashes, open_split
        from tfasr.training.from_gin import load_config

        self.experiments = {
            one.name: load_config(str(work.gin_file(one))).experiment
            for one in CONFIGURATIONS
        }
        splits = {
            name: open_split(work.shards, name) for name in ("train", "validation")
        }
        self.shards = content_hashes(splits)

    def training(self, name: str, folder: Path, promised: Promised) -> list[str]:
        """Returns what is wrong with a run's folder in a state of a disk."""
        from tfasr.ledger.events import read_events
        from tfasr.training.build import on_devices
        from tfasr.training.checkpoint import damage, newest_checkpoint, read_state
        from tfasr.training.run_folder import own_run_folder
        from tfasr.tta.run import load_run

        run_dir = folder / "run"
        faults = []
        for path in sorted((run_dir / "checkpoints").glob("*.npz")):
            if damage(path) is not None:
                faults.append(f"{path.name} does not load: {damage(path)}")

        if (run_dir / "events.jsonl").exists() and read_events(run_dir):
            load_run(run_dir).utilisation()
        # What a resumption does before it builds the model.
        experiment = on_devices(self.experiments[name])
        with own_run_folder(run_dir, experiment, self.shards, resume=True) as claim:
            events = read_events(run_dir) if claim.session else []
            checkpoint = newest_checkpoint(run_dir) if claim.session else None
            state = read_state(checkpoint) if checkpoint else None
            if len(events) < promised.lines:
                faults.append(
                    f"{promised.lines} lines were synced, {len(events)} are there"
                )

            if (state.step if state else 0) < promised.step:
                faults.append(f"step {promised.step} was published, {state} is there")
            if state:
                faults += _not_covered(events, state)

        return faults

    def preparing(self, folder: Path, promised: Promised) -> list[str]:
        """Returns what is wrong with prepared splits in a state of a disk."""
        from tfasr.data.packing import check_split_folder
        from tfasr.data.shards import open_split

        faults = []
        for split in ("train", "validation"):
            place = folder / "shards" / split
            check_split_folder(place)
            if (place / "index.json").exists():
                open_split(folder / "shards", split, content=True)
            elif f"shards/{split}/index.json" in promised.whole:
                faults.append(f"the index of {split} was published and is gone")

        return faults

    def evaluating(self, wanted: bytes, folder: Path, promised: Promised) -> list[str]:
        """Returns what is wrong with hypotheses in a state of a disk."""
        path = folder / "hypotheses.jsonl"
        if path.exists():
            if path.read_bytes() == wanted:
                return []

            return ["hypotheses.jsonl is not whole"]

        return ["hypotheses.jsonl is gone"] if path.name in promised.whole else []


def _not_covered(events: list[dict[str, Any]], state: Any) -> list[str]:
    faults = []
    steps = {
        event["metadata"]["step"] for event in events if event["key"] == "train_step"
    }
    if not set(range(1, state.step + 1)) <= steps:
        faults.append(
            f"step {state.step} is resumed from, and the ledger lacks steps before it"
        )

    epochs = {e["metadata"]["epoch_num"] for e in events if e["key"] == "tracked_stats"}
    if not set(range(1, len(state.history) + 1)) <= epochs:
        faults.append(
            f"{len(state.history)} epochs are in the checkpoint, {epochs} in the ledger"
        )

    return faults
