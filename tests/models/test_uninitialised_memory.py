"""Gradients in bfloat16 while all memory that nobody has written is NaN."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from tfasr.layers import fused_call

MEMORY_OF_NAN = """
#include <errno.h>
#include <stddef.h>
#include <string.h>
extern void *__libc_malloc(size_t);
extern void *__libc_memalign(size_t, size_t);
static void *filled(void *memory, size_t size) {
  return memory ? memset(memory, 0xff, size) : NULL;
}
void *malloc(size_t size) { return filled(__libc_malloc(size), size); }
void *memalign(size_t edge, size_t size) { return filled(__libc_memalign(edge, size), size); }
void *aligned_alloc(size_t edge, size_t size) { return memalign(edge, size); }
int posix_memalign(void **to, size_t edge, size_t size) {
  *to = memalign(edge, size);
  return *to ? 0 : ENOMEM;
}
"""
GRADIENTS = """
import sys
import numpy as np
import tensorflow as tf
from tfasr.layers import fused_call
from tfasr.models.build import build_recogniser
from tfasr.models.model import MODELS

SIZES = {
    "acoustic_model": {"conv_filters": 128, "num_lstm_layers": 1, "lstm_units": 32},
    "deep_speech_2": {"conv_filters": 32, "num_recurrent_layers": 1, "units": 16},
    "separable_conv": {"filters": (64, 64), "kernels": (5, 5), "repeats": 1},
    "conformer": {"width": 64, "num_blocks": 1, "num_heads": 2},
}

if sys.argv[1:] == ["mixed"]:
    fused_call._has_tiles = lambda: False
wrong = set()
for name, sizes in SIZES.items():
    features = 161 if name == "deep_speech_2" else 93
    model = build_recogniser(MODELS[name](**sizes), features, 29, dtype="mixed_bfloat16")

    @tf.function(reduce_retracing=True)
    def gradients(noise, lengths):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(noise, lengths, training=True))
        return tape.gradient(loss, model.trainable_variables)

    for frames in (254, 380, 506):
        noise = np.random.default_rng(0).normal(size=(8, frames, features)).astype("float32")
        found = gradients(tf.constant(noise), tf.fill([8], frames))
        if not all(np.isfinite(gradient).all() for gradient in found if gradient is not None):
            wrong.add(name)
print(sorted(wrong))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="replaces glibc's malloc"
)
def test_gradients_do_not_depend_on_what_memory_held(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = tmp_path / "nan.c"
    library = tmp_path / "nan.so"
    source.write_text(MEMORY_OF_NAN)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", GRADIENTS],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("tiles", "expected"), [(True, "float32"), (False, "mixed_bfloat16")]
)
def test_convolutions_are_float32_where_onednn_has_tiles(monkeypatch, tiles, expected):
    monkeypatch.setattr(fused_call, "_has_tiles", lambda: tiles)
    policy = keras.DTypePolicy("mixed_bfloat16")
    assert getattr(fused_call.convolution_policy(policy), "name", "float32") == expected
    for other in ("float32", "mixed_float16"):
        policy = keras.DTypePolicy(other)
        assert fused_call.convolution_policy(policy) is policy
