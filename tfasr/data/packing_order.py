"""The order in which a split's utterances are packed, and the hashes of what is known before."""

import hashlib
import itertools
import json
import random
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr.corpora.utterance import Utterance
from tfasr.data.listing import utterance_of
from tfasr.data.packing import Packing
from tfasr.data.rows import IN_MEMORY_BYTES, Rows, in_places

_BLOCK_BYTES = 1 << 20
_PLACES_AT_ONCE = 100_000


@dataclass(frozen=True)
class PackingOrder:
    """A split's utterances as they will stand in its shards.

    Attributes:
        kept: rows of `tfasr.data.listing.kept_row`.
        content_hash: of all that is known of the shards before audio is read. Neither the folder's
            place nor times count. An index's ``content_hash`` adds the records' own.
        resume_key: what must be unchanged for finished shards to be kept. Stricter: a file mended
            in place has its old size but a new time.
    """

    kept: Rows
    content_hash: str
    resume_key: str

    def parts(self, size: int) -> Iterator[list[Utterance]]:
        """Yields each shard's utterances; ``size`` is how many a shard holds."""
        rows = iter(self.kept)
        while part := [utterance_of(row) for row in itertools.islice(rows, size)]:
            yield part


def packing_order(kept: Rows, split: str, packing: Packing, folder: Path) -> PackingOrder:
    """Mixes a split's utterances, so that a shuffle buffer of a few shards meets all speakers.

    Args:
        kept: rows of `tfasr.data.listing.kept_row`, sorted by id.
        split: decides the order, together with the number of utterances.
        packing: a part of the hashes.
        folder: where rows go that do not fit into memory.
    """
    content = hashlib.sha256(json.dumps(packing.content(), sort_keys=True).encode())
    mixed = Rows(folder)
    with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=folder) as also:
        for row in in_places(kept, _places(len(kept), split), len(kept), folder):
            id_, _, _, text, speaker, size, changed_ns = row
            mixed.append(row)
            content.update(f"{id_}\0{text}\0{size}\n".encode())
            also.write(f"{speaker}\0{changed_ns}\n".encode())
        key = hashlib.sha256(content.hexdigest().encode())
        also.seek(0)
        while block := also.read(_BLOCK_BYTES):
            key.update(block)
    return PackingOrder(mixed, content.hexdigest(), key.hexdigest())


def _places(count: int, split: str) -> Iterator[int]:
    """Yields where the first, second, ... utterance by id is packed."""
    order = array("I", range(count))
    random.Random(split).shuffle(order)
    places = np.empty(count, np.uint32)
    places[np.frombuffer(order, np.dtype(f"u{order.itemsize}"))] = np.arange(count, dtype=np.uint32)
    del order
    for begin in range(0, count, _PLACES_AT_ONCE):
        yield from places[begin : begin + _PLACES_AT_ONCE].tolist()
