"""Compiled batch normalisation and dropout: every instruction set, any number of threads."""

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

core = pytest.importorskip(
    "tfasr.layers._recurrent_core", reason="built without a compiler"
)

EPSILON = 1e-3


def problem(rows, channels, density, dtype):
    """Random inputs, upstream gradients, scale, offset and mask."""
    rng = np.random.default_rng(rows * 1000 + channels)
    inputs, d_outputs = (
        rng.normal(2, 3, (rows, channels)).astype(dtype).astype("float64")
        for _ in range(2)
    )
    gamma, beta = rng.uniform(0.5, 2, (2, channels)).astype("float32")

    return inputs, d_outputs, gamma, beta, rng.random(rows) < density


def reference(inputs, d_outputs, gamma, beta, mask, scales):
    """The definition in double precision, and TensorFlow's gradient of it."""
    inputs, gamma, beta = (tf.constant(x, tf.float64) for x in (inputs, gamma, beta))
    weights = tf.constant(mask / max(mask.sum(), 1), tf.float64)[:, None]
    with tf.GradientTape() as tape:
        tape.watch([inputs, gamma, beta])
        mean = tf.reduce_sum(weights * inputs, axis=0)
        variance = tf.reduce_sum(weights * (inputs - mean) ** 2, axis=0)
        outputs = (inputs - mean) / tf.sqrt(variance + EPSILON) * gamma + beta
        loss = tf.reduce_sum(outputs * scales * d_outputs)

    gradients = tape.gradient(loss, [inputs, gamma, beta])
    return [x.numpy() for x in (outputs * scales, mean, variance, *gradients)]


def tensorflow_scales(rows, channels, levels, seed):
    """What `tf.random.stateless_uniform` makes of a seed, as dropout takes it."""
    if not levels:
        return np.ones((rows, channels))

    size = rows * channels
    words = tf.random.stateless_uniform(
        [(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32
    )
    drawn = words.numpy().view("uint16")[:size].reshape(rows, channels)

    return np.where(drawn < levels, 0.0, 65536 / (65536 - levels))


def compiled(inputs, d_outputs, gamma, beta, mask, dtype, levels, seed, **options):
    """The compiled kernel's outputs, statistics and gradients."""
    stored = [x.astype(dtype) for x in (inputs, d_outputs)]
    if dtype != "float32":
        stored = [x.view("uint16") for x in stored]

    name = "float32" if dtype == "float32" else "bfloat16"
    given = {
        "epsilon": EPSILON,
        "seed": np.array(seed, "int32"),
        "dropped_levels": levels,
    }
    given |= {"scale": 65536 / (65536 - levels)} | options
    x, dy = stored
    outputs, mean, variance = getattr(core, f"normalise_{name}")(
        x, gamma, beta, mask, **given
    )
    run = getattr(core, f"normalise_back_{name}")
    results = [
        outputs,
        mean,
        variance,
        *run(x, gamma, mean, variance, dy, mask, **given),
    ]

    return [
        x.view(ml_dtypes.bfloat16).astype("float32") if x.dtype == "uint16" else x
        for x in results
    ]


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 200),
    channels=st.integers(1, 70),
    density=st.sampled_from([0.0, 0.5, 1.0]),
    levels=st.sampled_from([0, 1, 13107, 65535]),
    seed=st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)),
    threads=st.integers(1, 5),
    dtype=st.sampled_from(["float32", ml_dtypes.bfloat16]),
)
def test_it_computes_the_definition_and_draws_what_tensorflow_draws(
    rows, channels, density, levels, seed, threads, dtype
):
    arrays = problem(rows, channels, density, dtype)
    scales = tensorflow_scales(rows, channels, levels, seed)
    expected = reference(*arrays, scales)
    # Results in bfloat16 have 8 bits; a number rounded the other way is off by 0.8 %.
    tolerance = 2e-5 if dtype == "float32" else 2e-2

    for name in core.instruction_sets():
        options = {"levels": levels, "seed": seed, "instruction_set": name}
        received = compiled(*arrays, dtype, threads=threads, **options)

        np.testing.assert_array_equal(received[0] == 0, expected[0] == 0)

        for ours, exact in zip(received, expected, strict=True):
            # Sums of numbers of both signs: what is lost counts by their size.
            largest = max(1, np.abs(exact).max(initial=0))

            np.testing.assert_allclose(
                ours, exact, rtol=tolerance, atol=tolerance * largest
            )

        for ours, other in zip(
            received, compiled(*arrays, dtype, threads=1, **options), strict=True
        ):
            np.testing.assert_array_equal(ours, other)


def test_padding_that_is_no_number_reaches_nothing_that_counts():
    inputs, d_outputs, gamma, beta, mask = problem(100, 9, 0.5, "float32")
    inputs[~mask], d_outputs[~mask] = 5.0, 0.0
    options = {"dtype": "float32", "levels": 0, "seed": (0, 0), "threads": 2}
    expected = compiled(inputs, d_outputs, gamma, beta, mask, **options)
    inputs[~mask] = np.inf

    outputs, mean, variance, *_ = compiled(
        inputs, d_outputs, gamma, beta, mask, **options
    )

    np.testing.assert_array_equal(outputs[mask], expected[0][mask])
    np.testing.assert_array_equal([mean, variance], expected[1:3])


@pytest.mark.parametrize(
    "wrong",
    [
        {"dropped_levels": 65536},
        {"dropped_levels": -1},
        {"threads": 0},
        {"seed": np.zeros(3, "i")},
    ],
)
def test_senseless_arguments_are_refused(wrong):
    given = {"seed": np.zeros(2, "i"), "dropped_levels": 0, "threads": 1} | wrong

    ones = np.ones(4, "f")
    mask = np.ones(3, bool)

    with pytest.raises(
        ValueError, match="dropped_levels in 0|seed has a wrong|threads must"
    ):
        core.normalise_float32(
            np.ones((3, 4), "f"), ones, ones, mask, epsilon=EPSILON, scale=1.0, **given
        )


FORKED = """
import os, sys
import numpy as np
from tfasr.layers import _recurrent_core as core
def normalise():
    x = np.ones((300, 8), "f")
    ones = np.ones(8, "f")
    return core.normalise_float32(
        x, ones, ones, np.ones(300, bool), 1e-3, np.zeros(2, "i"), 0, 1.0, threads=3
    )
normalise()
child = os.fork()
normalise()
if not child:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on Unix")
def test_a_forked_process_makes_threads_of_its_own():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        env=environment,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0
