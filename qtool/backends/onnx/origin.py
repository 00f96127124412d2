"""What a file was made from, in its metadata: model, weights, data and versions.

Nothing of it depends on time or machine, so that equal conversions give equal files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from qtool.backends.onnx.graph import Node
from qtool.backends.onnx.reading import OnnxModel, array_of, input_at, name_of
from qtool.core.output_evidence import Evidence, Operator, output_evidence, reads_images
from qtool.core.source_metadata import SourceMetadata
from qtool.core.versions import version_of

_KEY = "qtool_origin"
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")
"""Packages whose versions decide what a file contains."""
OWN = "qtool_"
"""Begin of the keys that describe a conversion; files made from a file do not inherit them."""


@dataclass(frozen=True)
class Origin:
    """What a file was made from.

    Attributes:
        model: fingerprint of the captured model, its graph and weights.
        weights: digest of the parameters and constants alone; empty if unknown.
        data: digest of the calibration samples, whatever their order; empty if unknown.
        samples: number of calibration samples.
        versions: package that took part in writing the file -> version.
        mark: mark of the float weights, see `weight_mark`; empty if unknown.
    """

    model: str
    weights: str = ""
    data: str = ""
    samples: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    mark: str = ""

    def metadata(self) -> dict[str, str]:
        """Return keys and values for the file."""
        return {_KEY: json.dumps({**vars(self), "versions": dict(self.versions)}, sort_keys=True)}

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Origin | None:
        """Return the origin in a file's metadata, None if it has none.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        if _KEY not in metadata:
            return None
        values: Any = json.loads(metadata[_KEY])
        versions = {str(k): str(v) for k, v in values["versions"].items()}
        model, weights, data = (str(values[name]) for name in ("model", "weights", "data"))
        mark = str(values.get("mark", ""))
        return cls(model, weights, data, int(values["samples"]), versions, mark)


def present_versions() -> dict[str, str]:
    """Return the versions of the packages that decide what a file contains."""
    return {name: version_of(name).partition("+")[0] for name in PACKAGES}


# What an ONNX file says of its source, and of its outputs.


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
    for owner, name, value in (*pairs, *docs):
        if value:
            setattr(owner, name, value)


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
