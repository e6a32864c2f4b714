"""From the shards' sidecars to a split's index and manifest, one shard after the other."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tfasr.data.columns import ColumnsWriter, needs_columns
from tfasr.data.dropped import Dropped
from tfasr.data.packing import Packing
from tfasr.data.rows import Rows, encoded
from tfasr.data.shard_index import INDEX_FILE, MANIFEST_FILE, sealed
from tfasr.data.shards import FeatureSums
from tfasr.durable import whole_file, write_whole


class PackedIndex:
    """What a split's shards add up to.

    Attributes:
        unpacked: rows of id, reason and detail of the utterances that could not be packed; whole
            once the lines were read.

    Args:
        folder: the split's.
        sidecars: of all shards, in order; read once.
    """

    def __init__(self, folder: Path, sidecars: Iterable[dict[str, Any]]):
        self._folder = folder
        self._sidecars = sidecars
        self.unpacked = Rows(folder)
        self._columns = ColumnsWriter(folder)
        self._shards: list[dict[str, Any]] = []
        self._sums = FeatureSums()
        self._records_hashes: list[str] = []
        self._utterances = self._frames = 0
        self._duration_s = 0.0

    def lines(self) -> Iterator[bytes]:
        """Yields the manifest's lines, a shard's at a time."""
        for sidecar in self._sidecars:
            utterances = sidecar["utterances"]
            self._shards.append(
                {
                    "file": sidecar["file"],
                    "bytes": sidecar["bytes"],
                    "utterances": len(utterances),
                    "sha256": sidecar["sha256"],
                }
            )
            self._records_hashes.append(sidecar["records_sha256"])
            self._sums.add_json(sidecar["feature_sums"])
            self.unpacked.extend(
                [bad["id"], bad["reason"], bad["detail"]] for bad in sidecar["bad"]
            )
            for utterance in utterances:
                self._frames += utterance["frames"]
                self._duration_s += utterance["duration_s"]
            self._utterances += len(utterances)
            lines = [encoded(utterance) for utterance in utterances]
            self._columns.add(utterances, lines)
            yield b"".join(lines)

    def write_manifest(self) -> str:
        """Reads the sidecars and writes the manifest; returns its SHA-256, in hexadecimal."""
        digest = hashlib.sha256()
        with whole_file(self._folder / MANIFEST_FILE) as file:
            for lines in self.lines():
                digest.update(lines)
                file.write(lines)
        return digest.hexdigest()

    def write_index(
        self, split: str, packing: Packing, planned: str, dropped: Dropped, manifest_sha256: str
    ) -> dict[str, Any]:
        """Writes the columns of a large split and, last, the index; returns the index.

        Args:
            split: its name.
            packing: how the shards were made.
            planned: the hash of what was known before audio was read.
            dropped: what was left out.
            manifest_sha256: of `write_manifest`.
        """
        content = planned + "".join(self._records_hashes)
        index = {
            "split": split,
            "content_hash": hashlib.sha256(content.encode()).hexdigest(),
            **packing.content(),
            "utterances": self._utterances,
            "duration_s": round(self._duration_s, 3),
            "frames": self._frames,
            "too_long": dropped.too_long,
            "bad": dropped.bad,
            "feature_sums": self._sums.to_json(),
            "shards": self._shards,
            "manifest_sha256": manifest_sha256,
        }
        if needs_columns(self._utterances):
            index["columns_sha256"] = self._columns.write()
        index = sealed(index)
        write_whole(self._folder / INDEX_FILE, json.dumps(index, indent=1) + "\n")
        return index
