"""The list of what was left out, written a row at a time."""

import json

import pytest

from tfasr.corpora.manifests import TOO_LONG
from tfasr.data.listing import Dropped, Selection
from tfasr.data.rows import Rows


@pytest.mark.parametrize("unfit", [[], [["é", "no CTC path", "a\nb"], ["f", "no CTC path", "y"]]])
def test_it_is_what_json_makes_of_the_whole(tmp_path, unfit):
    too_long = [["l", TOO_LONG, "20 s"]] * (len(unfit) // 2)
    unusable = [["u\udcff", "unreadable audio", "x"]] * (len(unfit) // 2)
    groups = [Rows(tmp_path).extend(rows) for rows in ([["k"]], too_long, unusable, unfit)]
    dropped = Dropped(Selection(*groups), Rows(tmp_path))
    dropped.write(tmp_path / "dropped.json")
    fields = ("id", "reason", "detail")
    rows = [dict(zip(fields, row, strict=True)) for row in [*too_long, *unusable, *unfit]]
    reasons = {"no CTC path": 2, TOO_LONG: 1, "unreadable audio": 1} if unfit else {}
    content = {"too_long": len(too_long), "bad": len(unusable) + len(unfit)}
    content |= {"reasons": reasons, "utterances": rows}
    expected = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    assert (tmp_path / "dropped.json").read_bytes() == expected.encode(errors="backslashreplace")
