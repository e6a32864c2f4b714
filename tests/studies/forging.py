"""Changes a study as a skilled forger would: every hash that depends on a change is made anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ledger.test_events import chained
from tfasr.data.manifest import file_sha256
from tfasr.kit.files import EVENTS_FILE
from tfasr.ledger.declared import STARTS_FILE, sha256


def written(events: list[dict[str, Any]]) -> bytes:
    return chained(
        [json.dumps(event, separators=(",", ":")).encode() for event in events]
    )


def events_of(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    for event in events:
        del event["chain"]
    return events


class Forger:
    """A study in memory: its list, its newest plan, and the ledgers of its runs."""

    def __init__(self, study: Path):
        self.study = study
        self.list = events_of(study / STARTS_FILE)
        self.sealed = json.loads((study / self._plans()[-1]["file"]).read_text())
        self.folders = {
            (run["experiment"], run["seed"]): study / run["folder"]
            for run in self.sealed["runs"]
        }
        self.folders = {
            run: f for run, f in self.folders.items() if (f / EVENTS_FILE).is_file()
        }
        self.ledgers = {
            run: events_of(f / EVENTS_FILE) for run, f in self.folders.items()
        }
        lines = (study / STARTS_FILE).read_text().splitlines()
        hashes = [json.loads(line)["chain"] for line in lines]
        self._starts = {
            id(event): one for event, one in zip(self.list, hashes, strict=True)
        }
        # The ledgers' lines that the list's marks name, by the place in the list.
        self._marked: dict[int, dict[str, Any]] = {}
        for event in self.list:
            mark = event["value"].get("ledger")
            if mark is not None and self.run_of(event) in self.folders:
                folder = self.folders[self.run_of(event)]
                lines = (
                    (folder / EVENTS_FILE).read_bytes()[: mark["bytes"]].count(b"\n")
                )
                self._marked[id(event)] = self.ledgers[self.run_of(event)][lines - 1]

    @staticmethod
    def run_of(event: dict[str, Any]) -> tuple[str, int]:
        return event["value"].get("experiment"), event["value"].get("seed")

    def _plans(self) -> list[dict[str, Any]]:
        return [event["value"] for event in self.list if event["key"] == "plan"]

    def facts(self, run: tuple[str, int], key: str) -> list[dict[str, Any]]:
        return [event for event in self.ledgers[run] if event["key"] == key]

    def file(
        self, run: tuple[str, int], name: str, change: Callable[[str], str]
    ) -> None:
        """Changes a file of a run, and its hash in the ledger."""
        path = self.folders[run] / name
        path.write_text(change(path.read_text()))
        for event in self.facts(run, "files"):
            event["value"][name] = file_sha256(path)

    def write(self) -> None:
        """Writes plan, list and ledgers with new hashes."""
        plan = self._plans()[-1]
        old = self._plans()[-1]["sha256"]
        # Like `tfasr.ledger.declared.canonical`, but a forger may write NaN.
        sealed = (
            json.dumps(self.sealed, sort_keys=True, separators=(",", ":")).encode()
            + b"\n"
        )
        (self.study / plan["file"]).write_bytes(sealed)
        new = plan["sha256"] = sha256(sealed)
        renamed = {old: new}
        starts: dict[str, str] = {}
        for place, event in enumerate(self.list):
            value = event["value"]
            if not isinstance(value, dict):
                continue
            if value.get("plan") == old:
                value["plan"] = renamed[old]
            if id(event) in self._marked and self.run_of(event) in list(self.ledgers):
                last = self._marked[id(event)]
                value["ledger"] = self._mark(self.run_of(event), last, starts, renamed)

            if event.get("key") == "start":
                text = written(self.list[: place + 1]).splitlines()[-1]
                starts[self._starts.get(id(event), "new")] = json.loads(text)["chain"]

        for run, folder in self.folders.items():
            (folder / EVENTS_FILE).write_bytes(
                written(self._declared(run, starts, renamed))
            )
        (self.study / STARTS_FILE).write_bytes(written(self.list))

    def _declared(self, run, starts, plans) -> list[dict[str, Any]]:
        for event in self.ledgers[run]:
            value = event.get("value")
            begins = event.get("key") == "session_start" and isinstance(value, dict)
            declared = value.get("declared") if begins else None
            if isinstance(declared, dict):
                for name, renamed in (("start", starts), ("plan", plans)):
                    if (
                        isinstance(declared.get(name), str)
                        and declared[name] in renamed
                    ):
                        declared[name] = renamed[declared[name]]

        return self.ledgers[run]

    def _mark(self, run, last, starts, plans) -> dict[str, Any]:
        events = self._declared(run, starts, plans)
        place = next(
            (n for n, event in enumerate(events) if event is last), len(events) - 1
        )
        content = written(events[: place + 1])
        return {
            "chain": json.loads(content.splitlines()[-1])["chain"],
            "bytes": len(content),
        }
