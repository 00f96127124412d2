"""A reader that does otherwise than the runtime is found, and named."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
from onnx import numpy_helper

from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.frontends.onnx import check, read_nodes
from qtool.frontends.onnx.onnx_file import capture_onnx
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.frontends.onnx.operator_table import OPERATORS
from tests.frontends.onnx.files import behind_conv, images, loaded

TEXT = "e = Elu <alpha = 2.0> (h) t = Tanh (e) y0 = Conv <pads = [1, 1, 1, 1]> (t, w2, b)"


def test_the_first_operator_that_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(OPERATORS["Elu"], function=lambda call, x: torch.nn.functional.elu(x))
    monkeypatch.setattr(read_nodes, "OPERATORS", {**OPERATORS, "Elu": wrong})
    model = loaded(behind_conv(TEXT), tmp_path)
    with pytest.raises(CaptureError, match=r"computes Elu1 \(Elu\) differently than ONNX Runtime"):
        capture_onnx(model, Batch((images(),)))


def test_roundings_that_add_up_are_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnnxModule(behind_conv(TEXT)).eval()
    x = images()
    values = model.observe([x])
    expected = {"y0": (values["y0"] * (1 + 2e-4)).numpy()}
    check.compare_with_runtime(model, {"x": x.numpy()}, expected, values)


def test_a_norm_of_single_values_gives_the_noise_of_either_side(tmp_path: Path) -> None:
    """What rounding left of x - mean(x), divided by the root of epsilon."""
    groups = "p = GlobalAveragePool (h) y0 = GroupNormalization <num_groups = 4> (p, b, z)"
    nothing = "n0 = Constant <value_float = 0.0> () z = Mul (b, n0)"
    model = loaded(behind_conv(f"{nothing} {groups}"), tmp_path)
    capture_onnx(model, Batch((30 * images(),)))


@pytest.mark.parametrize(("rows", "least"), [(8, 1), (2, 2), (8, 5)])
def test_all_values_are_in_memory_of_a_few_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, least: int
) -> None:
    """Of the batch where the first size is no number of samples: time, of which a convolution takes
    at least 5 steps."""
    text = f"""<ir_version: 9, opset_import: ["": 17]> g (float[T, 3] x) => (float[M, 2] y) {{
        t = Transpose (x) u = Unsqueeze (t, zero) c = Conv <kernel_shape = [{least}]> (u, w)
        s = Squeeze (c, zero) y = Transpose (s)
    }}"""
    model = onnx.parser.parse_model(text)
    weight = np.linspace(-1, 1, 6 * least, dtype=np.float32).reshape(2, 3, least)
    stored = {"w": weight, "zero": np.array([0])}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in stored.items())
    sizes: list[int] = []
    observe = OnnxModule.observe

    def recorded(self: OnnxModule, inputs: Sequence[torch.Tensor], whole: bool = True) -> Any:
        sizes.append(len(inputs[0]))
        return observe(self, inputs, whole)

    monkeypatch.setattr(OnnxModule, "observe", recorded)
    capture_onnx(loaded(model, tmp_path), Batch((torch.rand(rows, 3),)))
    assert sizes[0] == (2 if least <= 2 else rows)


def test_a_file_that_the_runtime_refuses_is_refused(tmp_path: Path) -> None:
    model = loaded(
        behind_conv(
            "r = Reshape (h, s) s0 = Shape (r) y0 = Relu (r)".replace(
                "r = Reshape (h, s)", "s = Constant <value_ints = [7, -1]> () r = Reshape (h, s)"
            )
        ),
        tmp_path,
    )
    with pytest.raises(CaptureError, match="ONNX Runtime cannot run the file"):
        capture_onnx(model, Batch((images(),)))


def test_results_that_overflow_are_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnnxModule(behind_conv("w3 = Constant <value_float = 1e30> () y0 = Mul (h, w3)")).eval()
    x = 1e20 * images()
    values = model.observe([x])
    expected = {"y0": torch.full_like(values["y0"], float("inf")).numpy()}
    runs = {**expected, "h": values["h"].numpy()}
    monkeypatch.setattr(check, "run_file", lambda *_: runs)
    with pytest.raises(CaptureError, match="overflows float32 on the first batch"):
        check.compare_with_runtime(model, {"x": x.numpy()}, expected, values)


def test_a_file_of_single_samples_says_so_whatever_it_declares(tmp_path: Path) -> None:
    text = "s = Constant <value_ints = [1, 256]> () y0 = Reshape (h, s)"
    model = loaded(behind_conv(text), tmp_path)
    with pytest.raises(CaptureError, match=r"with one sample alone.*\(batch_size=1\)"):
        capture_onnx(model, Batch((images(4),)))
    capture_onnx(model, Batch((images(1),)))
