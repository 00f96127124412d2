"""Files of scales: encodings of AIMET of each version, QDQ files of several forms, damaged ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qtool.core.errors import CalibrationError, FileError
from qtool.core.types import INT8, UINT8
from qtool.plugins.scales.readers import FileScales, read_scales

# A tensor of the range -1 to 3.98, a weight with two symmetric channels, a bias, a float tensor.
SCALE, ZERO, CHANNELS = 5 / 256, 51, [0.01, 0.02]


def _legacy(scale: float, offset: int) -> dict[str, Any]:
    low, high = offset * scale, (255 + offset) * scale
    symmetric = str(offset == -128)
    ends = {"min": low, "max": high, "scale": scale, "offset": offset}
    return {"bitwidth": 8, "dtype": "int", "is_symmetric": symmetric, **ends}


def _one(name: str, kind: str, scale: list[float], offset: int, bits: int = 8) -> dict[str, Any]:
    terms = {"enc_type": kind, "dtype": "INT", "bw": bits, "is_sym": offset == -128}
    return {"name": name, **terms, "scale": scale, "offset": [offset] * len(scale)}


ENCODINGS: dict[str, dict[str, Any]] = {
    "0.6.1": {
        "version": "0.6.1",
        "activation_encodings": {
            "x": [_legacy(SCALE, -ZERO)],
            "half": [{"bitwidth": 16, "dtype": "float"}],
        },
        "param_encodings": {
            "w": [_legacy(c, -128) for c in CHANNELS],
            "b": [{**_legacy(1e-4, 0), "bitwidth": 32}],
        },
    },
    "1.0.0": {
        "version": "1.0.0",
        "activation_encodings": [
            _one("x", "PER_TENSOR", [SCALE], -ZERO),
            {"name": "half", "enc_type": "PER_TENSOR", "dtype": "FLOAT", "bw": 16},
        ],
        "param_encodings": [
            _one("w", "PER_CHANNEL", CHANNELS, -128),
            _one("b", "PER_TENSOR", [1e-4], 0, bits=32),
            _one("blocks", "PER_BLOCK", CHANNELS, -128),
        ],
    },
    "2.0.0": {
        "version": "2.0.0",
        "encodings": [
            {"name": "x", "output_dtype": "uint8", "y_scale": SCALE, "y_zero_point": ZERO},
            {"name": "half", "output_dtype": "float16"},
            {"name": "w", "output_dtype": "int8", "y_scale": CHANNELS, "axis": 0},
            {"name": "b", "output_dtype": "int32", "y_scale": [1e-4, 2e-4], "axis": 0},
            {
                "name": "blocks",
                "output_dtype": "int8",
                "y_scale": [CHANNELS],
                "axis": 0,
                "block_size": 32,
            },
        ],
    },
}


def _write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), "utf-8")
    return path


@pytest.mark.parametrize("version", ENCODINGS)
def test_encodings(version: str, tmp_path: Path) -> None:
    scales = read_scales(_write(tmp_path / "a.encodings", ENCODINGS[version]))
    by_name = {s.names[0]: s for s in scales.scales}
    assert by_name.keys() == {"x", "w"}
    x, w = by_name["x"].params, by_name["w"].params
    assert (x.qtype, x.scale, x.zero_point, x.axis) == (UINT8, np.float32(SCALE), ZERO, None)
    middle = {UINT8: 128, INT8: 0}[w.qtype]
    assert w.scale.tolist() == np.float32(CHANNELS).tolist()
    assert w.zero_point.tolist() == [middle, middle]
    assert by_name["w"].is_weight
    reasons = {"half": "it is a float"}
    if version != "0.6.1":
        reasons["blocks"] = "a scale for each block of weights"
    assert scales.refused == reasons


GRAPH = """<ir_version: 8, opset_import: ["" : OPSET DOMAIN]>
g (float[n, 2] x) => (float[n, 2] y) <
  float x_scale = {0.5}, ZERO x_zero = {3}, float[2] w_scale = {0.25, 0.5}, int8[2] w_zero = {0, 0},
  int8[2, 2] w = {1, 2, 3, 4}, float y_scale = {2}, uint8 y_zero = {0}
> {
  xq = PREFIXQuantizeLinear (x, x_scale, x_zero)
  xd = PREFIXDequantizeLinear (xq, x_scale, x_zero)
  [layer] wd = PREFIXDequantizeLinear <axis = 1> (w, w_scale, w_zero)
  [product] yf = MatMul (xd, wd)
  yq = QuantizeLinear (yf, y_scale, y_zero)
  y = DequantizeLinear (yq, y_scale, y_zero)
}"""


def _qdq(path: Path, opset: int = 17, zero: str = "uint8", contrib: bool = False) -> FileScales:
    text = GRAPH.replace("OPSET", str(opset)).replace("ZERO", zero)
    text = text.replace("DOMAIN", ', "com.microsoft" : 1' if contrib else "")
    text = text.replace("PREFIX", "com.microsoft." if contrib else "")
    onnx.save(onnx.parser.parse_model(text), path)
    return read_scales(path)


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("contrib", [False, True])
def test_qdq_files(opset: int, contrib: bool, tmp_path: Path) -> None:
    x, w, y = sorted(_qdq(tmp_path / "a.onnx", opset, contrib=contrib).scales, key=_order)
    assert x.names == ("x", "xd")
    assert (x.params.qtype, x.params.scale, x.params.zero_point) == (UINT8, 0.5, 3)
    assert w.names == ("product", "w")
    assert w.is_weight
    assert w.params.axis == 1
    assert w.values.tolist() == [[0.25, 1.0], [0.75, 2.0]]
    assert (
        "y" in y.names
    )  # of a graph output the name of the dequantized tensor is that of the model


def _order(scale: Any) -> int:
    return ("x", "product", "yf").index(scale.names[0])


def test_codes_of_other_types_are_refused(tmp_path: Path) -> None:
    scales = _qdq(tmp_path / "a.onnx", opset=21, zero="float8e4m3fn")
    assert scales.refused == {"x": "codes of type float8_e4m3fn"}


@pytest.mark.parametrize(
    ("text", "damaged"),
    [
        ("float[2] w_scale = {0.25, 0.5}", "float[3] w_scale = {0.25, 0.5, 1}"),
        ("float[2] w_scale = {0.25, 0.5}, int8[2] w_zero = {0, 0}", "float[0] w_scale = {}"),
        ("int8[2] w_zero = {0, 0}", "int8[1] w_zero = {0}"),
        ("<axis = 1>", "<axis = 2>"),
    ],
    ids=["three scales", "no scale", "one zero point", "no such axis"],
)
def test_scales_that_fit_no_channels_are_refused(
    text: str, damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = GRAPH.replace("(w, w_scale, w_zero)", "(w, w_scale)") if "[0]" in damaged else GRAPH
    assert text in GRAPH
    monkeypatch.setitem(globals(), "GRAPH", without.replace(text, damaged))
    scales = _qdq(tmp_path / "a.onnx")
    assert scales.refused == {"product": "it has more or fewer scales than channels"}
    assert {"x", "yf"} == {s.names[0] for s in scales.scales}


def test_a_float_file_has_no_scales(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "a.onnx")
    with pytest.raises(CalibrationError, match="no QuantizeLinear and no DequantizeLinear in it"):
        read_scales(tmp_path / "a.onnx")


MISTAKES: dict[str, tuple[str, str | None, str]] = {
    "another suffix": ("a.txt", "", "scales are read from files with the suffix .onnx, .encodings"),
    "no file": ("a.json", None, "a.json: no such file"),
    "truncated": ("a.json", '{"version": "1.0.0", "activ', "damaged or truncated JSON .* again"),
    "a list": ("a.json", "[]", "no encodings of AIMET of a version from 0.4 to 2"),
    "another version": ("a.json", '{"version": "3.0.0"}', "of a version from 0.4 to 2"),
    "no section": ("a.json", '{"version": "1.0.0"}', "activation_encodings"),
    "a scale of zero": (
        "a.json",
        '{"version": "2.0.0", "encodings":[{"name":"x","output_dtype":"uint8","y_scale":0.0}]}',
        "a scale is no positive number",
    ),
    "a name that is no text": (
        "a.json",
        '{"version": "2.0.0", "encodings":[{"name":["x"],"output_dtype":"uint8","y_scale":0.5}]}',
        r"the name \['x'\] is no text",
    ),
    "floats alone": (
        "a.json",
        '{"version": "2.0.0", "encodings": [{"name": "x", "output_dtype": "float16"}]}',
        "none of its scales is one of 8- or 16-bit integers",
    ),
    "no ONNX": ("a.onnx", "text", r"is a text \('text'\), not the \.onnx file"),
}


@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES)
def test_mistakes(case: tuple[str, str | None, str], tmp_path: Path) -> None:
    name, text, message = case
    if text is not None:
        (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises((CalibrationError, FileError), match=message):
        read_scales(tmp_path / name)
