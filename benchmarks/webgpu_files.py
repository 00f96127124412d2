"""Files of other tools on the WebGPU provider: the verdict of `qtool verify --cpu webgpu`.

    python benchmarks/webgpu_files.py FOLDER --realdata REALDATA [--found FILE ...] [--hand 5]

Writes files with onnxruntime.quantization (static QDQ and QOperator, dynamic, MatMulNBits) from
float networks of REALDATA and of the examples; with NNCF, where it is installed; --found adds ONNX
files, such as those of installed packages. --hand files are also run by a plain script that knows
nothing of qtool: both providers of onnxruntime-webgpu in one process, one sample, numpy. Needs
`qtool emulators install --webgpu`.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

import qtool
from qtool.backends.onnxruntime.emulation.cpus import WEBGPU
from qtool.backends.onnxruntime.emulation.jobs import launch
from qtool.evaluation.model_inputs import random_inputs

EACH = 3
"""One of so many files is also run by hand, until there are enough."""
BY_HAND = """
import sys
import numpy as np, onnx, onnxruntime as ort
model, arrays = onnx.load(sys.argv[1]), np.load(sys.argv[2])
for node in model.graph.node:  # the CPU provider multiplies in float
    if node.op_type == "MatMulNBits":
        for attribute in [a for a in node.attribute if a.name == "accuracy_level"]:
            node.attribute.remove(attribute)
onnx.save(model, sys.argv[3])
results = []
for file, providers in ((sys.argv[3], ["CPUExecutionProvider"]),
                        (sys.argv[1], ["WebGpuExecutionProvider", "CPUExecutionProvider"])):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    session = ort.InferenceSession(file, options, providers=providers)
    feeds = {i.name: arrays[str(n)] for n, i in enumerate(session.get_inputs())}
    results.append(session.run(None, feeds))
worst = 1e9
for one, other in zip(*results):
    one, other = np.float64(one), np.float64(other)
    noise = float(((one - other) ** 2).sum())
    if noise:
        worst = min(worst, 10 * np.log10(float((one**2).sum()) / noise))
print(f"{worst:.1f}" if worst < 1e9 else "equal")
"""
"""Model, arrays, a scratch path -> the worst SQNR of its outputs in dB."""


class Reader(CalibrationDataReader):
    """Batches of one input."""

    def __init__(self, name: str, batches: list[np.ndarray]) -> None:
        self.rest = iter([{name: batch} for batch in batches])

    def get_next(self) -> Any:
        return next(self.rest, None)


def networks(realdata: Path, folder: Path) -> dict[str, tuple[Path, list[np.ndarray]]]:
    """Write float files; return them with data of their one input."""
    sys.path[:0] = [str(realdata / "cifar10"), str(realdata / "kws")]
    import model as kws  # type: ignore[import-not-found]
    import models  # type: ignore[import-not-found]

    images = models.preprocess(np.load(realdata / "cifar10/calib_images.npy")[:64])
    sounds = torch.as_tensor(kws.data()[0][:64])
    made = {name: (getattr(models, name)(pretrained=True), torch.as_tensor(images).float())
            for name in ("resnet20", "mobilenetv2_w05", "densenet40")}  # fmt: skip
    made["ds_cnn"] = kws.ds_cnn(pretrained=True), sounds.float()
    found = {}
    for name, (network, data) in made.items():
        path = folder / f"{name}.onnx"
        torch.onnx.export(network.eval(), (data[:8],), path, dynamo=False, opset_version=17)
        found[name] = path, [part.numpy() for part in data.split(8)]
    return found


def by_onnxruntime(
    folder: Path, files: dict[str, tuple[Path, list[np.ndarray]]]
) -> Iterator[tuple[str, Path]]:
    """Yield static and dynamic files of convolutional networks."""
    forms = {
        "static QDQ": {"quant_format": QuantFormat.QDQ},
        "static QOperator": {"quant_format": QuantFormat.QOperator},
        "static QDQ, per channel, percentile": {
            "quant_format": QuantFormat.QDQ,
            "per_channel": True,
            "calibrate_method": CalibrationMethod.Percentile,
        },
    }
    for form, options in forms.items():
        for name, (file, data) in files.items():
            if len(options) > 1 and name not in ("resnet20", "ds_cnn"):
                continue
            path = folder / f"{name}-{form.replace(' ', '-').replace(',', '')}.onnx"
            reader = Reader(onnx.load(file).graph.input[0].name, data)
            types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
            quantize_static(file, path, reader, **types, **options)
            yield f"{name}, {form}", path


def of_transformers(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield dynamic and 4-bit files of the sentence encoder, one with 8 bits."""
    source = Path("examples/sentence_encoder/model")
    float_file = folder / "sentences.onnx"
    network = qtool.load_model(source)
    batch = (torch.ones(2, 16, dtype=torch.int64),) * 2
    qtool.capture_model(network, batch).export_float(float_file)
    model = onnx.load(float_file)
    del model.graph.value_info[:]  # quantize_dynamic transposes weights of Gemm, and keeps it
    onnx.save(model, float_file)
    path = folder / "sentences-dynamic.onnx"
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(float_file, path, weight_type=QuantType.QUInt8, extra_options=options)
    yield "sentence encoder, dynamic", path
    sizes = ((4, 32, True, "QOperator"), (4, 32, False, "QOperator"), (4, 128, True, "QOperator"))
    for bits, block, symmetric, form in (*sizes, (8, 32, True, "QOperator"), (4, 32, True, "QDQ")):
        chosen = QuantFormat[form]
        made = MatMulNBitsQuantizer(
            onnx.load(float_file), bits=bits, block_size=block, is_symmetric=symmetric,
            accuracy_level=4, quant_format=chosen,
        )  # fmt: skip
        made.process()
        kind = "symmetric" if symmetric else "zero points"
        form = "MatMulNBits" if form == "QOperator" else "DequantizeLinear in blocks"
        path = folder / f"sentences-{bits}-{block}-{kind[:4]}-{form[:4]}.onnx"
        onnx.save(made.model.model, path)
        yield f"sentence encoder, {form}, {bits} bits, blocks of {block}, {kind}", path


def by_nncf(
    folder: Path, files: dict[str, tuple[Path, list[np.ndarray]]]
) -> Iterator[tuple[str, Path]]:
    """Yield files of NNCF, if it is installed."""
    if importlib.util.find_spec("nncf") is None:
        return
    import nncf  # type: ignore[import-not-found]

    for name in ("resnet20", "ds_cnn"):
        file, data = files[name]
        model = onnx.load(file)
        feeds = [{model.graph.input[0].name: batch} for batch in data]
        path = folder / f"{name}-nncf.onnx"
        onnx.save(nncf.quantize(model, nncf.Dataset(feeds)), path)
        yield f"{name}, NNCF", path


def by_hand(path: Path, folder: Path) -> str:
    """Return what a plain script finds on one random sample."""
    (batch,) = random_inputs(path, 1, 1)
    arrays = folder / "arrays.npz"
    np.savez(arrays, **{str(n): array for n, array in enumerate(batch)})
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    environment = launch(WEBGPU, scratch).environment
    words = [sys.executable, "-c", BY_HAND, str(path), str(arrays), str(folder / "level-0.onnx")]
    made = subprocess.run(words, env=dict(environment), capture_output=True, text=True, check=False)
    lines = (made.stdout or made.stderr).strip().splitlines()
    return lines[-1][:160] if lines else "nothing printed"


def row(name: str, path: Path, hand: str) -> str:
    try:
        compared = qtool.verify_on_webgpu(path, samples=1, batch_size=1, timeout=600)
    except qtool.QtoolError as error:
        return f"| {name} | {str(error).splitlines()[0][:160]} | | | | {hand} |"
    ratios = [o.sqnr_db for o in compared.outputs if o.sqnr_db is not None]
    worst = f"{min(ratios):.1f}" if ratios else "equal"
    verdict = "agrees" if compared.agrees else f"differs: {compared.first}"
    place = compared.placement
    limit = f"{worst} ({compared.limit_db:.0f})"
    return f"| {name} | {verdict} | {limit} | {len(place.fallbacks)} | {place.copies} | {hand} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--realdata", type=Path, required=True)
    parser.add_argument("--found", type=Path, nargs="*", default=[])
    parser.add_argument("--hand", type=int, default=5)
    chosen = parser.parse_args()
    folder = chosen.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    files = networks(chosen.realdata, folder)
    of_tools = chain(
        of_transformers(folder),
        by_onnxruntime(folder, files),
        by_nncf(folder, files),
        ((f"{file.parent.name}/{file.name}", file) for file in chosen.found),
    )
    print("| file | verdict | worst output, dB (limit) | on the CPU | copies | by hand, dB |")
    print("|---|---|---|---|---|---|")
    for n, (name, path) in enumerate(of_tools):
        hand = by_hand(path, folder) if n % EACH == 0 and n // EACH < chosen.hand else ""
        print(row(name, path, hand), flush=True)


if __name__ == "__main__":
    main()
