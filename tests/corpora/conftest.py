import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

SHARED_DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"needs the recordings in {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture
def write_audio():
    """Writes a file of noise with the folders above it."""

    def write(path: Path, seconds: float = 0.5, rate_hz: int = 16000) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(0).uniform(-0.1, 0.1, int(seconds * rate_hz))
        soundfile.write(path, noise, rate_hz)
        return path

    return write


@pytest.fixture
def write_lines():
    def write(path: Path, *lines) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        return path

    return write
