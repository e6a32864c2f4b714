"""Which utterances were left out, and why: counted, told, written."""

import collections
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tfasr.corpora.manifest import TOO_LONG
from tfasr.data.listing import Selection
from tfasr.data.rows import Rows
from tfasr.durable import whole_file
from tfasr.errors import RunError

_LISTED = 20
_FIELDS = ("id", "reason", "detail")


class Dropped:
    """All that a split leaves out.

    Args:
        selection: what listing and selecting left out.
        unpacked: rows of id, reason and detail of what could not be packed.
    """

    def __init__(self, selection: Selection, unpacked: Rows):
        self._selection = selection
        self._unpacked = unpacked

    @property
    def too_long(self) -> int:
        """How many are too long."""
        return len(self._selection.too_long)

    @property
    def bad(self) -> int:
        """How many are bad."""
        return self._selection.bad + len(self._unpacked)

    def write(self, path: Path) -> None:
        """Writes ``dropped.json``: the counts by reason, then every utterance left out."""
        reasons = collections.Counter({TOO_LONG: self.too_long} if self.too_long else {})
        reasons.update(reason for _, reason, _ in self._bad_rows())
        head = {
            "too_long": self.too_long,
            "bad": self.bad,
            "reasons": dict(reasons.most_common()),
            "utterances": [],
        }
        begun = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("]\n}")
        with whole_file(path) as file:
            file.write(begun.encode(errors="backslashreplace"))
            between = "\n"
            for row in self._rows():
                text = json.dumps(
                    dict(zip(_FIELDS, row, strict=True)), indent=1, ensure_ascii=False
                )
                indented = between + "  " + text.replace("\n", "\n  ")
                file.write(indented.encode(errors="backslashreplace"))
                between = ",\n"
            file.write(b"]\n}\n" if between == "\n" else b"\n ]\n}\n")

    def refuse_too_many(self, kept: int, max_bad_fraction: float, path: Path) -> None:
        """Raises RunError if too many utterances are bad, or none is good.

        Args:
            kept: utterances that were selected.
            max_bad_fraction: largest share of bad utterances among all but the too long ones.
            path: of ``dropped.json``.
        """
        total, bad = kept + self._selection.bad, self.bad
        if not total:
            raise RunError(
                f"{path.parent} would be empty: no utterance was found, or all are too long."
            )
        # Divided, because 0.29 * 100 is less than 29.
        if bad / total <= max_bad_fraction and bad < total:
            return
        first = [row for row, _ in zip(self._bad_rows(), range(_LISTED), strict=False)]
        listed = "\n".join(f"  {id_}: {reason} ({detail})" for id_, reason, detail in first)
        more = f"\n  ... and {bad - _LISTED} more" if bad > _LISTED else ""
        needed = math.ceil(1000 * bad / total) / 1000
        remedy = f"Mend them, or accept the loss with --max_bad_fraction {needed:g}"
        if bad == total:
            remedy = "Mend them: a split must hold at least one good utterance"
        raise RunError(
            f"At most {max_bad_fraction:.2%} of the utterances may be bad. Received: {bad} of "
            f"{total} ({bad / total:.2%}):\n{listed}{more}\n"
            f"All are listed in {path}. {remedy}; finished shards are kept."
        )

    def _rows(self) -> Iterator[list[Any]]:
        yield from self._selection.too_long
        yield from self._bad_rows()

    def _bad_rows(self) -> Iterator[list[Any]]:
        groups: Iterable[Rows] = (self._selection.unusable, self._selection.unfit, self._unpacked)
        for group in groups:
            yield from group
