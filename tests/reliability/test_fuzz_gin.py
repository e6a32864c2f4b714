"""Damaged gin files: an experiment, or one error that names the file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reliability.conftest import TINY
from tests.reliability.fuzzing import bounded, damaged
from tfasr.errors import UsageError
from tfasr.kit.gin import presets_folder
from tfasr.tta.costs import load_hardware


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gin")


def read_or_refused(read, path, content):
    # What a file imports is run: that is documented, and no matter of damage.
    path.write_bytes(content.replace(b"import", b"imp0rt"))
    try:
        read(path)
    except UsageError as error:
        assert path.name in str(error) or "--gin_file" in str(error)  # noqa: PT017


@bounded(30)
@given(st.data())
def test_a_damaged_description_of_a_machine(folder, data):
    content = (presets_folder() / "hardware" / "paper_sys1.gin").read_bytes()
    read_or_refused(load_hardware, folder / "machine.gin", data.draw(damaged(content)))


@bounded(30)
@given(st.data())
def test_a_damaged_experiment(folder, data):
    from tfasr.training.from_gin import load_config

    content = TINY.read_bytes()
    read = lambda path: load_config(str(path))  # noqa: E731
    read_or_refused(read, folder / "experiment.gin", data.draw(damaged(content)))
