"""Writes the files that the tests of the base install read; this needs torch.

python -m tests.base_files FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import onnx

import qtool
from tests.evaluation.report.page.made_up import made_up

ROOT = Path(__file__).parents[1]
NETWORK = "examples.digits.network:digits_net"
SAMPLES = 96  # of which the network mistakes one


def write(folder: Path) -> None:
    """Write the digits network as files of both formats, spoiled copies and a stored report."""
    model = qtool.load_model(NETWORK, ROOT / "examples/digits/weights.safetensors")
    data = list(qtool.load_data(ROOT / "calib_data/digits"))
    qtool.capture_model(model, data[0]).export_float(folder / "float.onnx")
    for target, name in (("onnxruntime", "int8.onnx"), ("tflite", "int8.tflite")):
        quantized = qtool.quantize(model, data, target=target, accuracy="fast")
        quantized.export(folder / name, timing=0)
    for name, change in (("damaged", _damage), ("other", _without_metadata)):
        proto = onnx.load(folder / "int8.onnx")
        change(proto)
        onnx.save(proto, folder / f"{name}.onnx")
    with np.load(ROOT / "examples/digits/eval.npz") as file:
        np.savez(folder / "eval.npz", **{name: array[-SAMPLES:] for name, array in file.items()})
    (folder / "report.json").write_text(made_up().text())


def _damage(proto: onnx.ModelProto) -> None:
    """Flip a bit of a weight."""
    codes = next(i for i in proto.graph.initializer if i.name.endswith("weight.codes"))
    codes.raw_data = bytes([codes.raw_data[0] ^ 1, *codes.raw_data[1:]])


def _without_metadata(proto: onnx.ModelProto) -> None:
    """Make the file that of another tool."""
    del proto.metadata_props[:]
    proto.producer_name = "other"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
