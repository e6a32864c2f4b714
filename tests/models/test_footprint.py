"""The estimate of a step's memory."""

import pytest

from tfasr.models.costs import estimated_step_bytes
from tfasr.models.recurrent import AcousticModelConfig

MIB = 2**20


@pytest.mark.parametrize(
    ("batch", "measured_mib"),
    [(2, 1899), (4, 2095)],  # peaks of processes that trained the paper's model on 600 frames
)
def test_the_papers_model_takes_about_what_was_measured(batch, measured_mib):
    estimated = estimated_step_bytes(AcousticModelConfig(), 93, 27_000_000, batch, 600)
    assert estimated / MIB == pytest.approx(measured_mib, rel=0.15)


def test_more_of_anything_takes_more():
    def estimate(batch=8, frames=600, **sizes):
        return estimated_step_bytes(AcousticModelConfig(**sizes), 93, 10_000_000, batch, frames)

    least = estimate()
    assert estimate(batch=9) > least
    assert estimate(frames=700) > least
    assert estimate(num_lstm_layers=6) > least
    assert estimate(lstm_units=900) > least
    assert estimate(bidirectional=True) > least
