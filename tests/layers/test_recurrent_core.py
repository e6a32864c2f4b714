"""The compiled steps under every instruction set and any number of threads."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

resource = pytest.importorskip("resource", reason="limits of processes are of Unix")
core = pytest.importorskip(
    "tfasr.layers._recurrent_core", reason="built without a compiler"
)


def problem(batch, time, units, gates, density, dtype):
    """Random inputs, weights, states, mask and upstream gradients."""
    rng = np.random.default_rng(batch * 1000 + units)
    projected, kernel = (
        rng.normal(scale=scale, size=shape).astype(dtype)
        for scale, shape in (
            (1, (batch, time, gates * units)),
            (0.2, (units, gates * units)),
        )
    )
    bias, h, c, d_h, d_c, d_outputs = (
        rng.normal(size=shape).astype("float32")
        for shape in [gates * units, *[(batch, units)] * 4, (batch, time, units)]
    )
    mask = None if density is None else rng.random((batch, time)) < density

    if dtype != "float32":
        projected = projected.view("uint16")
        kernel = kernel.view("uint16")

    return projected, bias, kernel, h, c, mask, (d_outputs, d_h, d_c)


def run(projected, bias, kernel, h, c, mask, upstream, name, **options):
    """The compiled kernel's outputs and gradients, forward and backward."""
    forward, backward = (
        getattr(core, f"{way}_{name}") for way in ("forward", "backward")
    )
    saved = forward(projected, bias, kernel, h, c, mask, **options)
    return *saved, *backward(*saved, kernel, h, c, mask, *upstream, **options)


def as_float(array):
    if array.dtype == "uint16":
        return array.view(ml_dtypes.bfloat16).astype("float32")

    return array


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 6), st.integers(1, 70)),
    gates=st.sampled_from([1, 4]),
    density=st.none() | st.sampled_from([0.0, 0.5]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    threads=st.integers(1, 5),
)
def test_all_instruction_sets_and_numbers_of_threads_agree(
    sizes, gates, density, dtype, threads
):
    given_dtype = "float32" if dtype == "float32" else ml_dtypes.bfloat16
    arrays = problem(*sizes, gates, density, given_dtype)
    ceiling = 0.7
    options = {"name": dtype, "ceiling": ceiling}
    expected = run(*arrays, threads=1, instruction_set="portable", **options)

    for name in core.instruction_sets():
        received = run(*arrays, threads=threads, instruction_set=name, **options)
        for ours, theirs in zip(received, expected, strict=True):
            ours = as_float(ours)
            theirs = as_float(theirs)
            # One value that is rounded to bfloat16 the other way moves all that follow.
            if dtype == "float32":
                atol = 1e-4
            else:
                atol = 0.05 * max(1, np.abs(theirs).max(initial=0))

            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=atol)


def test_extreme_sums_saturate_and_nan_stays_nan():
    rows = np.array([[[-1e30] * 4], [[1e30] * 4], [[np.nan] * 4]], "float32")
    zeros = np.zeros((3, 1), "float32")
    kernel = np.zeros((1, 4), "float32")
    bias = np.zeros(4, "float32")

    for name in core.instruction_sets():
        _, c, h = core.forward_float32(
            rows, bias, kernel, zeros, zeros, None, threads=1, instruction_set=name
        )

        np.testing.assert_allclose(c[:, 0, 0], [0, 1, np.nan], atol=1e-6)
        np.testing.assert_allclose(h[:, 0, 0], [0, np.tanh(1), np.nan], atol=1e-6)


def test_wrong_shapes_are_refused():
    f = np.zeros

    with pytest.raises(ValueError, match="projected has a wrong shape"):
        core.forward_float32(
            f((1, 2, 8), "f"),
            f(8, "f"),
            f((2, 9), "f"),
            f((1, 2), "f"),
            f((1, 2), "f"),
            None,
            1,
        )

    with pytest.raises(ValueError, match="instruction_set must be one of"):
        core.forward_float32(
            *(
                f((1, 2, 8), "f"),
                f(8, "f"),
                f((2, 8), "f"),
                f((1, 2), "f"),
                f((1, 2), "f"),
            ),
            *(None, 1, "abacus"),
        )


def test_tiles_are_tested_where_there_are_none():
    *_, portable, emulated = core.instruction_sets()

    assert (portable, emulated) == ("portable", "emulated_amx")


STACK_BYTES = 1 << 28
WITH_LITTLE_MEMORY = f"""
import resource, sys, threading
sys.path[:0] = {sys.path!r}
import numpy as np
from tests.layers.test_recurrent_core import problem, run
arrays = problem(16, 5, 64, 4, 0.5, "float32")
expected = run(*arrays, name="float32", threads=1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 3 * {STACK_BYTES}, -1))
received = run(*arrays, name="float32", threads=8)
try:
    idle = threading.Event()
    for _ in range(7):
        threading.Thread(target=idle.wait, daemon=True).start()
except RuntimeError:
    print("the system refused threads")
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
for ours, theirs in zip(received, expected):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
print("equal")
idle.set()
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits memory as Linux does"
)
def test_fewer_threads_do_the_work_where_the_system_refuses_some():
    def large_stacks():
        resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.RLIM_INFINITY))

    done = subprocess.run(
        [sys.executable, "-c", WITH_LITTLE_MEMORY],
        preexec_fn=large_stacks,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n") == ["the system refused threads", "equal", ""], (
        done.stderr
    )
