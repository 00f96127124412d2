"""Reads the metadata of a source ONNX file, and writes it into the files made from it."""

from __future__ import annotations

import onnx

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
