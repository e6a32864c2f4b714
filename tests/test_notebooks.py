"""The notebooks run from the first cell to the last, one after the other in one folder."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def test_the_first_notebook_keeps_a_picture_of_figure_3s_three_panels():
    cells = json.loads(NOTEBOOKS[0].read_text())["cells"]
    (drawn,) = (cell for cell in cells if "wave.plot(" in "".join(cell["source"]))
    source = "".join("".join(drawn["source"]).split())
    assert "wave.plot(seconds,samples" in source
    assert source.count(".imshow(features[") == 2
    (picture,) = (output["data"]["image/png"] for output in drawn["outputs"])
    assert len(picture) > 50_000


def test_each_notebook_shows_a_picture_within_two_cells():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        first = json.loads(path.read_text(encoding="utf-8"))["cells"][:2]
        outputs = [output for cell in first for output in cell.get("outputs", [])]
        assert any("image/png" in output.get("data", {}) for output in outputs), path


@pytest.mark.long
# The kernel's own machinery warns of its event loop and of sockets closed late.
@pytest.mark.filterwarnings("default")
def test_the_notebooks_run(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="needs the dev extra")
    nbformat = pytest.importorskip("nbformat", reason="needs the dev extra")
    pytest.importorskip("espeakng_loader", reason="needs the demo extra")
    assert [path.stem for path in NOTEBOOKS] == ["01_train", "02_tta_curves"]
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        resources = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=240, resources=resources).execute()

    assert (tmp_path / "report" / "report.html").is_file()
