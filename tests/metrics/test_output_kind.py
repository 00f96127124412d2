"""What outputs are: the table of networks, as files and as graphs, and what a user calls them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import qtool
from qtool.backends.formats import open_file
from qtool.core.output_evidence import Evidence
from qtool.metrics.output_errors import samples_first
from qtool.metrics.output_kind import output_kind
from qtool.simulation.output_evidence import evidence_of_graph
from tests.metrics.outputs_of_networks import NETWORKS, SAMPLES, inputs_of, model_of


@pytest.mark.parametrize("case", NETWORKS)
def test_outputs_of_networks(case: str, tmp_path: Path) -> None:
    network = NETWORKS[case]
    model, path = model_of(network), tmp_path / "net.onnx"
    onnx.save(model, path)
    inputs = inputs_of(model)
    session = onnxruntime.InferenceSession(path)
    outputs = dict(zip(network.kinds, session.run(list(network.kinds), inputs), strict=True))
    batch = {name: torch.from_numpy(values) for name, values in inputs.items()}
    graph = qtool.capture_model(qtool.load_model(path), batch).graph
    for evidence in (open_file(path).output_evidence(), evidence_of_graph(graph, {})):
        kinds = {}
        for name, values in outputs.items():
            known = evidence[name]._replace(labels=network.labels)
            kinds[name] = _kind(name, samples_first(values, SAMPLES), known)
        assert kinds == network.kinds


def _kind(name: str, values: np.ndarray[Any, Any], evidence: Evidence) -> str | None:
    if values.dtype.kind != "f":
        return None
    kind = output_kind(name, values, evidence)
    return None if kind is None else kind.kind
