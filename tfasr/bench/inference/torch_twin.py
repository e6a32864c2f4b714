"""The same weights in PyTorch's own layers, as someone who uses PyTorch would run them."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tfasr.errors import UsageError
from tfasr.recognising.acoustics import State
from tfasr.recognising.exported import GRAPH_FILE, read_spec
from tfasr.recognising.recogniser import Recogniser

if TYPE_CHECKING:
    import torch

# Where PyTorch's gates stand among ONNX's: i, f, g, o among i, o, f, c; r, z, n among z, r, h.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}


def check_torch() -> None:
    """Raises UsageError unless PyTorch is installed."""
    if find_spec("torch") is None:
        raise UsageError("It needs PyTorch, which is not installed: pip install torch.")


def torch_recogniser(folder: Path) -> Recogniser:
    """Returns an exported recogniser whose model runs on PyTorch.

    Args:
        folder: what ``tfasr export --to onnx`` wrote; the weights are its graph's.

    Raises:
        UsageError: if its model is not a recurrent stack that runs in one direction.
    """
    check_torch()
    return Recogniser(read_spec(folder, {}), TorchTwin(folder / GRAPH_FILE))


class TorchTwin:
    """Computes log-probabilities with PyTorch's convolution, LSTMs or GRUs, and dense layer.

    Args:
        graph: the path of a graph that `tfasr.exporting.onnx_models.recurrent_graph` wrote.

    Raises:
        UsageError: if it is another graph.
    """

    batches_at_once = 1  # PyTorch divides one among the cores

    def __init__(self, graph: Path):
        import onnx
        from onnx import numpy_helper

        content = onnx.load(graph).graph
        weights = {one.name: numpy_helper.to_array(one) for one in content.initializer}
        layers = [node for node in content.node if node.op_type in _GATES]
        one_way = all(len(weights[f"{node.name}_w"]) == 1 for node in layers)
        if "convolution_kernel" not in weights or not one_way:
            raise UsageError(
                "PyTorch's twin is written for a convolution and recurrent layers that run in one "
                "direction. The model is another."
            )
        (strides,) = (
            attribute.ints
            for node in content.node
            if node.op_type == "Conv"
            for attribute in node.attribute
            if attribute.name == "strides"
        )
        self._stride = int(strides[0])
        self._convolution = _tensors(weights["convolution_kernel"], weights["convolution_bias"])
        self._classifier = _tensors(weights["classifier_kernel"].T, weights["classifier_bias"])
        self._layers = [_layer(node.op_type, node.name, weights) for node in layers]

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns log-probabilities, see `tfasr.recognising.acoustics.Acoustics`."""
        found, _ = self._run(features, [None] * len(self._layers))
        return found

    def initial_state(self) -> State:
        """Returns the state of a recurrence that has heard nothing."""
        return [None] * len(self._layers)

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities, see `tfasr.recognising.acoustics.Acoustics`."""
        found, state = self._run(features[None], state)
        return found[0], state

    def _run(self, features: np.ndarray, states: State) -> tuple[np.ndarray, State]:
        import torch
        from torch.nn import functional

        with torch.inference_mode():
            by_channel = torch.from_numpy(features).transpose(1, 2)
            convolved = functional.conv1d(by_channel, *self._convolution, stride=self._stride)
            hidden, reached = functional.relu(convolved).transpose(1, 2), []
            for layer, state in zip(self._layers, states, strict=True):
                hidden, state = layer(hidden, state)
                reached.append(state)
            logits = functional.linear(hidden, *self._classifier)
            return functional.log_softmax(logits, dim=-1).numpy(), reached


def _layer(operator: str, name: str, weights: dict[str, np.ndarray]) -> "torch.nn.Module":
    import torch

    kernel, recurrent_kernel, bias = (weights[f"{name}_{part}"][0] for part in "wrb")
    gates = _GATES[operator]
    kinds = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}
    layer = kinds[operator](kernel.shape[1], recurrent_kernel.shape[1], batch_first=True)
    arrays = {"weight_ih_l0": kernel, "weight_hh_l0": recurrent_kernel}
    arrays |= dict(zip(("bias_ih_l0", "bias_hh_l0"), np.split(bias, 2), strict=True))
    ordered = {}
    for target, array in arrays.items():
        split = np.split(array, len(gates))
        (ordered[target],) = _tensors(np.concatenate([split[gate] for gate in gates]))
    layer.load_state_dict(ordered)
    return layer.eval()


def _tensors(*arrays: np.ndarray) -> "list[torch.Tensor]":
    import torch

    return [torch.from_numpy(np.array(array, np.float32, order="C")) for array in arrays]
