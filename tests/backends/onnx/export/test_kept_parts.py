"""Forms that no reader takes, between two layers in integers: they stay in float."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import qtool
from tests.backends.onnx.export.networks import run
from tests.frontends.onnx.files import behind_conv, images, loaded

PADDED = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"
FORMS = {
    "same": (18, 'AveragePool <kernel_shape = [3, 3], auto_pad = "SAME_UPPER", strides = [2, 2]>'),
    "dilated": (19, "AveragePool <kernel_shape = [2, 2], dilations = [2, 2]>"),
    "over": (19, f"AveragePool <{PADDED}, ceil_mode = 1, count_include_pad = 1>"),
    "oldest": (7, 'Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]>'),
}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_as_in_the_file(form: str, tmp_path: Path) -> None:
    opset, call = FORMS[form]
    text = f"p = {call} (h) y0 = Conv <kernel_shape = [3, 3]> (p, w2)"
    file, x = behind_conv(text, opset), images(16)
    quantized = qtool.quantize(loaded(file, tmp_path), [x])
    found = quantized.export(tmp_path / "int8.onnx")
    assert found is not None
    assert found.passed
    (real,), (coded,) = (run(f, [x]) for f in (file, onnx.load(tmp_path / "int8.onnx")))
    assert ((real - coded) ** 2).sum() < 1e-2 * (real**2).sum()
