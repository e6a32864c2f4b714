"""Opens exported Keras files, which anyone may have made.

A recogniser in use loads such files (`tfasr.recognising`). They are archives, so a
small file could unpack to more than the memory; sizes are checked before Keras reads
anything.
"""

import zipfile
from pathlib import Path

import h5py
import keras

from tfasr.errors import UsageError
from tfasr.kit.files import opened
from tfasr.models.build import SavedRecogniser

_WEIGHTS = "model.weights.h5"  # in the archive, as Keras calls it
_MOST_HEADER_BYTES = 1 << 20  # for HDF5's own lists, in addition to the weights
_REMEDY = "Export the model again with tfasr export --to keras."


def load_keras_file(path: Path) -> SavedRecogniser:
    """Loads a model that ``tfasr export --to keras`` wrote, without its optimizer.

    Raises:
        UsageError: naming the file, if it isn't one, needs code that isn't loaded, or
        would take up more memory than it has bytes, as compressed files can.
    """
    try:
        _check_sizes(path)
        model = keras.saving.load_model(path, compile=False)
    except UsageError:
        raise
    except Exception as error:  # Keras raises many kinds for files that aren't its own
        cause = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{path} must be an exported Keras model: {cause}. {_REMEDY}"
        ) from error

    if not isinstance(model, SavedRecogniser):
        raise UsageError(
            f"{path} must hold a recogniser. Received: a {type(model).__name__}. {_REMEDY}"
        )

    return model


def _check_sizes(path: Path) -> None:
    """Raises UsageError if a file would take up more memory than it has bytes."""
    with opened(path, None) as file, zipfile.ZipFile(file) as archive:
        size = path.stat().st_size
        if sum(entry.file_size for entry in archive.infolist()) > size:
            raise UsageError(
                f"{path} must hold its parts uncompressed, as Keras writes them. {_REMEDY}"
            )

        with archive.open(_WEIGHTS) as weights, h5py.File(weights, "r") as content:
            bytes_in_memory = _bytes_in_memory(content, path)

        if bytes_in_memory > size + _MOST_HEADER_BYTES:
            raise UsageError(
                f"{path} has {size} bytes, but its weights would take up {bytes_in_memory}. "
                f"{_REMEDY}"
            )


def _bytes_in_memory(group: h5py.Group, path: Path) -> int:
    """Adds up all arrays below a group; UsageError for links and arrays in other files.

    A link could name the same weights many times, or a file elsewhere on the disk.
    """
    total = 0
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise UsageError(
                f"{path} has the link {name!r} to other weights. {_REMEDY}"
            )

        item = group[name]
        if isinstance(item, h5py.Group):
            total += _bytes_in_memory(item, path)
            continue

        if item.external or item.is_virtual or item.dtype.kind not in "fiub":
            raise UsageError(
                f"{path} has weights of the kind {item.dtype} in {name!r}. {_REMEDY}"
            )

        total += item.nbytes

    return total
