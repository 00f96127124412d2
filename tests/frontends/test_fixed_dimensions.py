"""Dimensions that a graph does not follow are fixed, and rounding errors are no such difference."""

from pathlib import Path

import numpy as np
import onnx
import torch

from qtool.frontends.captured_model import capture_model
from qtool.frontends.onnx import load_onnx


def test_outputs_that_are_rounding_errors_at_another_size_do_not_fix_it(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[N, H, 4096] x) => (float[N, H, 1] y)
        { y = MatMul (x, w) }"""
    )
    ones = np.ones((4096, 1), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(ones, "w"))
    onnx.save(model, tmp_path / "sum.onnx")
    draw = torch.Generator().manual_seed(0)
    half = torch.rand(4, 8, 2048, generator=draw)
    x = torch.cat([half, -half], 2)  # sums of 0 but for what each order of additions rounds
    x = torch.cat([x, torch.rand(4, 8, 4096, generator=draw)], 1)  # the second half of the rows
    graph = capture_model(load_onnx(tmp_path / "sum.onnx"), x).graph
    assert graph.inputs[0].shape == ("N", "H", 4096)
