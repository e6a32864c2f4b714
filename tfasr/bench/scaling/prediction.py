"""Predicts the step of data-parallel training on N devices from one device's step and a link."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Link:
    """What connects the devices.

    Attributes:
        bytes_per_s: bandwidth of each device's link, one way; infinite for none at all.
        latency_s: seconds that each message takes besides.
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self):
        if not self.bytes_per_s > 0 or not 0 <= self.latency_s < math.inf:
            raise ValueError(
                "A link must have a bandwidth above 0 and a finite latency of at least 0. "
                f"Received: bytes_per_s={self.bytes_per_s}, latency_s={self.latency_s}."
            )


@dataclass(frozen=True)
class SingleDeviceStep:
    """Seconds of a step on one device: a fixed part, and one that grows with the batch.

    Attributes:
        fixed_s: what a step costs whatever the batch: the update, the starts of kernels.
        per_utterance_s: what an utterance adds.
    """

    fixed_s: float
    per_utterance_s: float

    def seconds(self, batch: float) -> float:
        """Returns the seconds of a step on so many utterances."""
        return self.fixed_s + self.per_utterance_s * batch


@dataclass(frozen=True)
class ScalingModel:
    """Everything the prediction knows.

    Attributes:
        single: the step on one device without any communication.
        gradient_bytes: bytes that every device exchanges in a step.
        link: between the devices.
        overlap: share of the exchange hidden behind the backward pass, 0..1; never more than the
            backward pass lasts.
        backward_share: share of the single device's step that is its backward pass.
        shared_cores: whether the "devices" are slices of one processor, as logical CPU devices
            are, so that N of them compute N times as long.
    """

    single: SingleDeviceStep
    gradient_bytes: float
    link: Link
    overlap: float = 0.0
    backward_share: float = 0.6
    shared_cores: bool = False

    def __post_init__(self):
        for name in ("overlap", "backward_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in 0..1. Received: {getattr(self, name)}.")

    def step_s(self, devices: int, per_device_batch: float) -> float:
        """Returns the seconds of one step.

        Args:
            devices: how many share the global batch.
            per_device_batch: utterances on each.
        """
        compute_s = self.single.seconds(per_device_batch)
        if self.shared_cores:
            compute_s *= devices
        exchange_s = ring_all_reduce_s(devices, self.gradient_bytes, self.link)
        hidden_s = min(self.overlap * exchange_s, self.backward_share * compute_s)
        return compute_s + exchange_s - hidden_s

    def weak_efficiency(self, devices: int, per_device_batch: float) -> float:
        """Returns one device's step over that of N devices, each with its own full batch."""
        return self.step_s(1, per_device_batch) / self.step_s(devices, per_device_batch)

    def strong_efficiency(self, devices: int, global_batch: float) -> float:
        """Returns one device's step over N times that of N devices sharing its batch."""
        shared = self.step_s(devices, global_batch / devices)
        return self.step_s(1, global_batch) / (devices * shared)


def ring_all_reduce_s(devices: int, size_bytes: float, link: Link) -> float:
    """Returns the seconds of a ring all-reduce.

    Each device sends ``2 (N - 1)`` messages of an N-th of the data, one after the other.

    Args:
        devices: in the ring; one has nobody to talk to.
        size_bytes: of the reduced tensor on each device.
        link: between neighbours.

    Source: P. Patarasuk and X. Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of
    Workstations, 2009, section 3.
    """
    if devices < 1:
        raise ValueError(f"There must be at least 1 device. Received: devices={devices}.")
    messages = 2 * (devices - 1)
    return messages * (link.latency_s + size_bytes / devices / link.bytes_per_s)


def fit_link(devices: Sequence[int], sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Returns the link whose ring all-reduce explains measured ones best.

    Args:
        devices: of each measurement, at least 2.
        sizes: bytes reduced in each; two different sizes tell latency from bandwidth.
        seconds: measured.

    Returns:
        The least-squares link over relative errors; latency and time per byte are never negative.
    """
    if not len(devices) == len(sizes) == len(seconds) > 0 or min(devices) < 2:
        raise ValueError(
            "A link must be fitted to all-reduces over at least 2 devices. Received: "
            f"devices={list(devices)}, {len(sizes)} sizes, {len(seconds)} times."
        )
    count, size = np.asarray(devices, float), np.asarray(sizes, float)
    columns = np.stack([2 * (count - 1), 2 * (count - 1) * size / count], axis=1)
    latency_s, s_per_byte = _fit_positive(columns, np.asarray(seconds, float))
    return Link(1 / s_per_byte if s_per_byte > 0 else math.inf, latency_s)


def fit_single_device(batches: Sequence[float], seconds: Sequence[float]) -> SingleDeviceStep:
    """Returns the affine step that explains measured ones best, neither part negative.

    Args:
        batches: utterances of each measurement; with one batch alone nothing is fixed.
        seconds: of a step on one device.
    """
    if not len(batches) == len(seconds) > 0 or min(batches) <= 0:
        raise ValueError(
            "A step must be fitted to measured batches of at least 1 utterance. Received: "
            f"batches={list(batches)}, {len(seconds)} times."
        )
    if len(set(batches)) == 1:
        return SingleDeviceStep(0.0, float(np.mean(seconds)) / batches[0])
    sizes = np.asarray(batches, float)
    columns = np.stack([np.ones_like(sizes), sizes], axis=1)
    return SingleDeviceStep(*_fit_positive(columns, np.asarray(seconds, float)))


def _fit_positive(columns: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Least squares over relative errors with two coefficients of at least 0."""
    from scipy.optimize import nnls

    weighted = columns / seconds[:, None]
    scale = np.maximum(weighted.max(axis=0), np.finfo(float).tiny)
    first, second = nnls(weighted / scale, np.ones(len(seconds)))[0] / scale
    return float(first), float(second)
