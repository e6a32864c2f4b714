"""How steps that processes timed are put together; the processes themselves are the benchmark's."""

import pytest


def row(step_s, ready_s, processor_s=0.0):
    return {"step_s": step_s, "ready_s": ready_s, "processor_s": processor_s}


def test_a_step_is_as_long_as_its_longest_process():
    from cluster_steps import Taken

    taken = Taken(
        {
            "one": [[row(1, 1), row(2, 2), row(4, 4)]],
            "workers": [
                [row(1.5, 1.0, 0.5), row(3.0, 2.0, 0.5), row(5.0, 3.0, 0.8)],
                [row(1.25, 1.0, 0.25), row(3.0, 2.5, 0.25), row(8.0, 7.0, 0.25)],
            ],
        }
    )
    assert taken.steps_s("workers") == [1.5, 3.0, 8.0]
    # Of the same batches: 1.5, 1.5 and 2 times as long.
    assert taken.ratio("workers", "one") == 1.5
    assert taken.exchange_s("workers") == 0.5
    assert taken.exchange_s("one") == 0
    assert taken.processor_s("workers") == pytest.approx(0.6 + 0.25)
