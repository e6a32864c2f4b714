"""How many threads the compiled parts of layers take."""

import pytest
import tensorflow as tf

from tfasr.layers import compiled


@pytest.mark.parametrize(
    ("cores", "told", "environment", "replicas", "expected"),
    [
        (8, 0, None, 1, 8),
        (8, 3, None, 1, 3),
        (8, 0, "2", 1, 2),
        (8, 3, "2", 1, 3),
        (2, 16, None, 1, 2),
        (8, 0, None, 2, 4),
        (8, 0, None, 3, 2),
        (1, 0, "", 4, 1),
    ],
)
def test_they_keep_to_the_cores_and_to_what_tensorflow_was_told(
    monkeypatch, cores, told, environment, replicas, expected
):
    monkeypatch.setattr(compiled, "usable_cores", lambda: cores)
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: told)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    if environment is not None:
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", environment)
    monkeypatch.setattr(compiled, "replicas_here", lambda: replicas)
    assert compiled.team_size()() == expected
