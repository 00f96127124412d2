"""What an ONNX file says of its source, and of its outputs."""

from __future__ import annotations

import onnx

from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import OnnxModel, array_of, input_at, name_of
from qtool.core.output_evidence import Evidence, Operator, output_evidence, reads_images
from qtool.core.source_metadata import SourceMetadata

OWN = "qtool_"
"""Begin of the keys that describe a conversion; files made from a file do not inherit them."""


def read_source_metadata(model: onnx.ModelProto) -> SourceMetadata:
    """Return the metadata of a file."""
    graph = model.graph
    return SourceMetadata(
        {p.key: p.value for p in model.metadata_props if not p.key.startswith(OWN)},
        model.model_version,
        model.domain,
        model.doc_string,
        graph.name,
        graph.doc_string,
        {v.name: v.doc_string for v in (*graph.input, *graph.output) if v.doc_string},
    )


def write_source_metadata(model: onnx.ModelProto, source: SourceMetadata) -> None:
    """Add the metadata of the source to a model, in place; what the source lacks stays."""
    for key, value in source.properties.items():
        model.metadata_props.add(key=key, value=value)
    if source.model_version:
        model.model_version = source.model_version
    pairs = (
        (model, "domain", source.domain),
        (model, "doc_string", source.doc_string),
        (model.graph, "name", source.graph_name),
        (model.graph, "doc_string", source.graph_doc_string),
    )
    ports = (*model.graph.input, *model.graph.output)
    docs = ((port, "doc_string", source.value_doc_strings.get(port.name, "")) for port in ports)
    for owner, field, value in (*pairs, *docs):
        if value:
            setattr(owner, field, value)


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
