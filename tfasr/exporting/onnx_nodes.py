"""Nodes and constants of an ONNX graph, and the file that they make."""

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class NodeWriter:
    """Collects nodes and weights; each method returns the name of what its node computes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.opsets = [helper.make_opsetid("", OPSET)]

    def weight(self, name: str, array: np.ndarray) -> str:
        """Adds a constant; floats in float32."""
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Adds a node with one output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def file(
        self,
        name: str,
        inputs: list[onnx.ValueInfoProto],
        outputs: list[onnx.ValueInfoProto],
        metadata: dict[str, str],
    ) -> bytes:
        """Returns the whole graph, checked, as a file's content.

        Args:
            name: of the graph.
            inputs: what it takes.
            outputs: what it returns, each computed by a node.
            metadata: pairs that the file carries.
        """
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=self.opsets, producer_name="tfasr")
        model.ir_version = IR_VERSION
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()
