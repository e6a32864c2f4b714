"""The kernels of the keyword spotter's training step, in TensorFlow and in PyTorch."""

import dataclasses

import numpy as np

from tfasr.bench.keywords.training import make_spotter
from tfasr.bench.probes.step import Batch
from tfasr.bench.roofline.kernels import Kernel, Kernels, profile
from tfasr.models.keyword_spotter import KeywordSpotterConfig

FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch alone"}
"""The frameworks by the backend of the process that they are profiled in."""

_WARM_UPS = 3
_LEARNING_RATE = 0.003


def spotter_kernels(framework: str, batch: int, steps: int) -> Kernels:
    """Profiles training steps of the keyword spotter on random features.

    Args:
        framework: "tensorflow", beneath Keras, or "torch", without it.
        batch: utterances.
        steps: how many.
    """
    network = KeywordSpotterConfig()
    layout, of = ("NCHW", "torch") if framework == "torch" else ("NHWC", "keras")
    stepper, _ = make_spotter(network, of, layout, learning_rate=_LEARNING_RATE)
    random = np.random.default_rng(0)
    shape = (batch, network.num_frames, network.num_bins)
    features = random.standard_normal(shape, np.float32)
    words = random.integers(0, network.num_words, batch, np.int32)
    placed = stepper.place(Batch((features,), (words,)))
    for _ in range(_WARM_UPS):
        stepper.update(placed)
    if framework == "torch":
        return _profile_torch(lambda: stepper.update(placed), steps)
    return profile(lambda: stepper.update(placed), steps)


def _profile_torch(step, steps: int) -> Kernels:
    """Runs steps under PyTorch's profiler; see `tfasr.bench.roofline.kernels.profile`."""
    import torch
    from torch.profiler import ProfilerActivity

    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities, with_flops=True) as profiler:
        for _ in range(steps):
            step()
    kernels, of_convolutions = [], 0.0
    for event in profiler.key_averages():
        # Time on the device where there is one, without what ran within.
        spent_us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if spent_us > 0:
            # The operations of a convolution are told of the call around its kernel.
            around = event.key in ("aten::conv1d", "aten::conv2d")
            of_convolutions += event.flops / steps if around else 0
            flops = event.flops / steps if event.flops and not around else None
            kernels.append(Kernel(event.key, event.count / steps, spent_us / 1e6 / steps, flops))
    kernels.sort(key=lambda kernel: -kernel.seconds)
    for index, kernel in enumerate(kernels):
        if kernel.kind == "convolution" and "backward" not in kernel.name:
            kernels[index] = dataclasses.replace(kernel, flops=of_convolutions or None)
            break
    return Kernels(kernels, "" if kernels else "the profiler recorded no kernel")
