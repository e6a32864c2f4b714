"""Writes ledgers by hand, so that the right answers are known before anything is computed."""

import json
from pathlib import Path


def step_numbers(run):
    """The numbers of a run's steps, without lost work."""
    line = run.timeline
    return [line.metadata[index]["step"] for index in line.steps.indices]


class LedgerBuilder:
    """Events of a run on a clock that the test moves; all times in seconds.

    ``wall_s`` is the wall clock, ``mono_s`` the process's; they move together but for
    `down`, which starts a new process, and for what a test does to them.
    """

    def __init__(self, wall_s=1_700_000_000.0, mono_s=50.0, with_mono=True):
        self.events = []
        self.wall_s = wall_s
        self.mono_s = mono_s
        self.with_mono = with_mono
        self.session = 0
        self.step_number = 0

    def wait(self, seconds):
        self.wall_s += seconds
        self.mono_s += seconds
        return self

    def event(self, key, value=None, event_type="POINT_IN_TIME", **metadata):
        if self.with_mono:
            clock = {"session": self.session, "mono_s": round(self.mono_s, 6)}
        else:
            clock = {}

        self.events.append(
            {
                "namespace": "",
                "time_ms": int(self.wall_s * 1000),
                "event_type": event_type,
                "key": key,
                "value": value,
                "metadata": {**metadata, **clock},
            }
        )
        return self

    def interval(self, name, seconds, **metadata):
        self.event(f"{name}_start", None, "INTERVAL_START", **metadata)
        self.wait(seconds)
        return self.event(f"{name}_stop", None, "INTERVAL_END", **metadata)

    def begin(
        self,
        init_s=0.0,
        *,
        targets=None,
        target_rule=None,
        metrics=None,
        comparability=None,
    ):
        """A process's first events; the model is created at the beginning of init."""
        self.event(
            "session_start",
            {"session": 0, "resumed_from_step": None, "alive_until_ms": None},
        )
        self._init(init_s)
        if targets is not None:
            self.event("targets", targets)

        if target_rule is not None:
            self.event("target_rule", target_rule)

        if metrics is not None:
            self.event("metrics", metrics)

        if comparability is not None:
            self.event("comparability", comparability)

        return self

    def _init(self, init_s):
        self.event("init_start", None, "INTERVAL_START")
        self.event("model_creation")
        self.wait(init_s)
        self.event("init_stop", None, "INTERVAL_END")
        self.event("run_start", None, "INTERVAL_START")

    def resume(self, *, down_s, from_step, alive_s=0.0, init_s=0.0):
        """Kills the process ``alive_s`` after its last event and resumes it ``down_s``
        later.
        """
        alive_until_ms = int((self.wall_s + alive_s) * 1000)
        self.wall_s += alive_s + down_s
        self.mono_s = 7.0
        self.session += 1
        self.step_number = from_step or 0
        self.event(
            "session_start",
            {
                "session": self.session,
                "resumed_from_step": from_step,
                "alive_until_ms": alive_until_ms,
            },
        )
        self._init(init_s)

        return self

    def step(
        self, train_s=1.0, *, wait_s=0.0, compile_s=0.0, loss=1.0, epoch=1, utterances=4
    ):
        self.step_number += 1
        self.wait(train_s + wait_s + compile_s)
        value = {
            "loss": loss,
            "utterances": utterances,
            "audio_s": 2.5 * utterances,
            "frames": 200 * utterances,
            "padded_frames": 250 * utterances,
            "input_wait_s": wait_s,
            "compile_s": compile_s,
            "train_s": train_s,
        }

        return self.event("train_step", value, epoch_num=epoch, step=self.step_number)

    def checkpoint(self, seconds=0.0):
        return self.interval("checkpoint", seconds, step=self.step_number)

    def evaluate(self, epoch, cer, wer=None, forward_s=0.0, decode_s=0.0):
        wer = 2 * cer if wer is None else wer
        self.event("eval_start", None, "INTERVAL_START", epoch_num=epoch)
        self.interval("eval_forward", forward_s, epoch_num=epoch)
        self.interval("decode", decode_s, epoch_num=epoch)
        self.event("eval_accuracy", wer, epoch_num=epoch)
        self.event(
            "tracked_stats", {"wer": wer, "cer": cer, "loss": 3 * cer}, epoch_num=epoch
        )

        return self.event("eval_stop", None, "INTERVAL_END", epoch_num=epoch)

    def epoch(self, epoch, cer, *, steps=2, train_s=1.0, wait_s=0.0, forward_s=0.0, decode_s=0.0,
              wer=None, loss=1.0):  # fmt: skip
        """An epoch with steps and an evaluation, without a checkpoint."""
        self.event("epoch_start", None, "INTERVAL_START", epoch_num=epoch)
        for _ in range(steps):
            self.step(train_s, wait_s=wait_s, epoch=epoch, loss=loss)

        self.evaluate(epoch, cer, wer, forward_s, decode_s)

        return self.event("epoch_stop", None, "INTERVAL_END", epoch_num=epoch)

    def end(self):
        return self.event("run_stop", None, "INTERVAL_END", status="success")

    def write(self, run_dir):
        run_dir = Path(run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(event) + "\n" for event in self.events)
        (run_dir / "events.jsonl").write_text(lines)

        return run_dir
