"""A recogniser that reads tones, on Keras and on ONNX Runtime."""

import pytest

from tests.recognising.spoken_tones import RUN


@pytest.fixture(scope="session")
def recogniser():
    """The recogniser of `RUN`, on Keras."""
    from tfasr.recognising.recogniser import load_recogniser

    return load_recogniser(RUN)


@pytest.fixture(scope="session")
def exported_tones(tmp_path_factory):
    """An exported folder of `RUN`, which is loaded in no time."""
    pytest.importorskip(
        "onnx", reason="needs the export extra: pip install 'tfasr[export]'"
    )
    pytest.importorskip("onnxruntime")
    from tfasr.exporting.export import write_unchecked

    folder = tmp_path_factory.mktemp("tones") / "exported"
    write_unchecked(RUN, folder, int8=False, checkpoint="best")
    return folder
