"""The recogniser that is exported."""

from tests.recognising.conftest import exported_tones, recogniser

__all__ = ["exported_tones", "recogniser"]
