import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.tta.run import load_run


@pytest.fixture
def run(tmp_path):
    ledger = LedgerBuilder().begin(init_s=2, targets=[["cer", 0.25]])
    ledger.epoch(1, 0.5, train_s=1.0, loss=9.0, decode_s=3.0).checkpoint()
    ledger.step(5.0, epoch=2)  # lost
    ledger.resume(down_s=100, from_step=2).epoch(2, 0.25, train_s=2.0).epoch(3, 0.2)
    return load_run(ledger.end().write(tmp_path / "<run>"))


def test_the_accuracy_curve_as_a_data_frame(run):
    pytest.importorskip("pandas", reason="needs the notebook extra")
    frame = run.to_dataframe()
    assert list(frame.columns) == ["epoch", "elapsed_s", "cer", "wer", "loss"]
    assert list(frame["epoch"]) == [1, 2, 3]
    assert list(frame["elapsed_s"]) == [7.0, 16.0, 18.0]
    assert list(frame["cer"]) == [0.5, 0.25, 0.2]
    assert list(run.to_dataframe("algoperf")["elapsed_s"]) == [2.0, 6.0, 8.0]
    with pytest.raises(ValueError, match="There is no policy"):
        run.to_dataframe("quick")


def test_the_steps_that_count_as_a_data_frame(run):
    pytest.importorskip("pandas", reason="needs the notebook extra")
    frame = run.steps_to_dataframe()
    assert list(frame["step"]) == [1, 2, 3, 4, 5, 6]
    assert list(frame["epoch"]) == [1, 1, 2, 2, 3, 3]
    assert list(frame["elapsed_s"]) == [3.0, 4.0, 14.0, 16.0, 17.0, 18.0]
    assert list(frame["loss"])[:2] == [9.0, 9.0]
    assert frame["utterances"].sum() == 24


def test_empty_runs_have_empty_frames_with_columns(tmp_path):
    pytest.importorskip("pandas", reason="needs the notebook extra")
    run = load_run(LedgerBuilder().begin().write(tmp_path / "run"))
    assert list(run.to_dataframe().columns) == ["epoch", "elapsed_s"]
    assert "train_s" in run.steps_to_dataframe().columns
    assert len(run.steps_to_dataframe()) == 0


def test_what_a_notebook_shows_of_a_run(run):
    html = run._repr_html_()
    assert "&lt;run&gt;" in html
    assert "<run>" not in html
    assert "18 s, at epoch 3" in html
    assert "lost work" in html
    assert "5.0 s" in html


def test_what_a_notebook_shows_of_a_time_to_accuracy(run):
    found = run.time_to_accuracy(cer=0.25)
    assert found.summary == "18 s, at epoch 3"
    assert "median of 3" in found._repr_html_()
    assert "18 s, at epoch 3" in found._repr_html_()
    never = run.time_to_accuracy(cer=0.01, window=1)
    assert never.summary == "never"
    assert "first crossing" in never._repr_html_()
