"""What an ONNX file says of its outputs."""

from __future__ import annotations

from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import OnnxModel, array_of, input_at, name_of
from qtool.backends.onnx.source_metadata import read_source_metadata
from qtool.core.output_evidence import Evidence, Operator, output_evidence, reads_images


def evidence_of_model(model: OnnxModel) -> dict[str, Evidence]:
    """Return what is known of each output: by the graph, and by names of classes in the file."""
    common = Evidence(
        classes=read_source_metadata(model.outline).classes,
        reads_images=reads_images(v.shape or () for v in model.inputs),
    )
    return output_evidence(
        map(_operator, model.nodes),
        [v.name for v in model.inputs],
        [v.name for v in model.outputs],
        common,
    )


def _operator(node: Node) -> Operator:
    inputs = [*node.inputs, *(value for each in node.inner for value in each.inputs)]
    stored = [v.name for v in node.inputs if v is not None and v.array is not None]
    count = array_of(input_at(node, 1)) if node.op_type == "TopK" else None
    return Operator(
        node.op_type,
        " ".join((node.name, *stored)),
        list(map(name_of, inputs)),
        [v.name for v in node.outputs],
        0 if count is None else int(count.reshape(-1)[0]),
    )
