"""A campaign's log: a line of JSON for each start and each finished piece of work."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any


class KillLog:
    """Appends to ``kills.jsonl``; a second start of the campaign counts on from it.

    A kill counts once the work that it hit has been finished and compared.

    Args:
        path: the file.
    """

    def __init__(self, path: Path):
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._lines: list[dict[str, Any]] = [json.loads(line) for line in lines if line]

    def add(self, **line: Any) -> None:
        """Appends a line and waits until it is on the disk."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

        self._lines.append(line)

    @property
    def next_round(self) -> int:
        """The number of the next piece of work."""
        return 1 + max((line["round"] for line in self._lines), default=-1)

    @property
    def faults(self) -> list[str]:
        """All violations."""
        return [
            f"round {line['round']}, {line['work']}: {fault}"
            for line in self._lines
            for fault in line.get("faults", ())
        ]

    def kills(self) -> Counter[str]:
        """Returns how many kills each kind of work survived or not, finished and compared."""
        finished = {line["round"] for line in self._lines if line.get("finished")}
        return Counter(
            line["work"]
            for line in self._lines
            if line.get("killed") and line["round"] in finished
        )

    def rounds(self) -> Counter[str]:
        """Returns how many pieces of work of each kind were finished."""
        return Counter(line["work"] for line in self._lines if line.get("finished"))

    def ways(self) -> Counter[str]:
        """Returns how many kills were made in each way."""
        return Counter(line["how"] for line in self._lines if line.get("killed"))

    def places(self) -> Counter[str]:
        """Returns how many kills hit each kind of operation, and at which moment."""
        return Counter(
            f"{line['moment']} {line['at'].split(' ')[0]}"
            for line in self._lines
            if line.get("killed") and line.get("at")
        )
