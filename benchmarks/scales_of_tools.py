"""The scales of other tools in qtool: are the codes equal, and what does recovery add?

    python benchmarks/scales_of_tools.py FOLDER --page PAGE

FOLDER has for each network NET.onnx (float), NET.calib.npy and NET.eval.npy, and for each tool
NET.TOOL.onnx (QDQ) or NET.TOOL.encodings of AIMET, made of NET.onnx and NET.calib.npy without a
change of weights and biases (equalization, bias correction). Codes are those of ONNX Runtime on 64
samples of NET.eval.npy, less the zero point; those of tensors behind one that was not taken are not
compared. SQNR is that of all of them against the float file.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.calibration.known_scales import KnownScales, known_scales
from qtool.core.sqnr import sqnr
from qtool.frontends.onnx.scales import read_scales
from qtool.frontends.onnx.scales.file_names import file_names

EXACT = "onnxruntime-x86-vnni"  # changes no scale for other CPUs
COMPARED = 64
SUFFIXES = (".onnx", ".encodings")
PREFACE = """# Scales of other tools in qtool

Command: `python benchmarks/scales_of_tools.py FOLDER --page PAGE`; its header says what it needs.
*Scales taken*: of those in the file. *Equal codes*: in ONNX Runtime on new samples, of the tensors
that are not behind one that was not taken, in the file for `onnxruntime-x86-vnni` without
recovery. The last three columns: SQNR in dB of the tool's own file, of qtool's file for all CPUs
without recovery, and with the default recovery. Versions: {versions}.
"""
HEAD = (
    "| tool | network | scales taken | tensors with equal codes | equal codes | file of the tool | "
    "before recovery | after |\n|---|---|---:|---:|---:|---:|---:|---:|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    options = parser.parse_args()
    rows, gains = [HEAD], []
    for data in sorted(options.folder.glob("*.calib.npy")):
        net = data.name.removesuffix(".calib.npy")
        for other in sorted(options.folder.glob(f"{net}.*.*")):
            if other.suffix in SUFFIXES and other.name != f"{net}.onnx":
                row, gain = measure(options.folder, net, other)
                gains.append(gain)
                rows.append(row)
                text = "\n".join([*rows, "", summary(gains)])
                options.page.write_text(f"{PREFACE.format(versions=versions())}\n{text}\n", "utf-8")
                print(row, flush=True)


def versions() -> str:
    packages = ("onnxruntime", "torch")
    return ", ".join(f"{p} {version(p)}" for p in packages)


def summary(gains: list[float]) -> str:
    return f"Recovery adds {np.median(gains):.2f} dB in the median, at least {min(gains):.2f} dB."


def measure(folder: Path, net: str, other: Path) -> tuple[str, float]:
    """Return the row of a file of scales, and what recovery adds in dB."""
    source, new = folder / f"{net}.onnx", np.load(folder / f"{net}.eval.npy")
    batches = torch.from_numpy(np.load(folder / f"{net}.calib.npy")).split(32)
    model, path = qtool.load_onnx(source), folder / "out" / "qtool.onnx"
    path.parent.mkdir(exist_ok=True)
    captured = qtool.capture_model(model, batches[0])
    known, same_scale = taken_scales(model, captured, batches[0], other)
    exact = qtool.calibrate(model, batches, target=EXACT)
    qtool.convert(model, exact, target=EXACT, scales=other, recover=()).export(path)
    same, share, own = "-", "-", "-"
    if other.suffix == ".onnx":
        equal = equal_codes(path, other, comparable(path, known, same_scale), new[:COMPARED])
        own = f"{fidelity(source, other, new):.2f}"
        same, share = f"{sum(e == 1 for e in equal)} of {len(equal)}", f"{np.mean(equal):.3%}"
    portable, figures = qtool.calibrate(model, batches), []
    for steps in ({"recover": ()}, {}):
        qtool.convert(model, portable, scales=other, **steps).export(path)
        figures.append(fidelity(source, path, new))
    count = known.notes[0].partition(" scales")[0]
    tool = other.name.removeprefix(f"{net}.").removesuffix(other.suffix)
    cells = (tool, net, count, same, share, own, *(f"{f:.2f}" for f in figures))
    return f"| {' | '.join(cells)} |", figures[1] - figures[0]


def taken_scales(
    model: Any, captured: Any, batch: Any, other: Path
) -> tuple[KnownScales, set[str]]:
    """Return the scales that are taken, and the points of activations that have those."""
    graph, plan = captured.for_target(EXACT)[0], captured.plan(EXACT)
    names = file_names(model, graph, graph.call_of([batch]))
    known = known_scales(read_scales(other), names, graph, plan)
    taken = {p for p in plan if plan.root(p.name) in known.names}
    return known, {
        p.name for p in taken if not known.refused.keys() & {*names.tensors.get(p.tensor, ())}
    }


def comparable(path: Path, known: KnownScales, same_scale: set[str]) -> dict[str, str]:
    """Return tensor of qtool's file -> tensor of the other, of those behind taken ones alone."""
    graph, behind, tensors = onnx.load(path).graph, set[str](), dict[str, str]()
    for node in graph.node:
        name = node.output[0]
        point = name.removesuffix(".quantize")
        if behind & {*node.input}:
            behind.add(name)
        elif node.op_type == "QuantizeLinear" and point in same_scale:
            tensors |= {point: known.names[point]} if point in known.names else {}
        elif node.op_type == "DequantizeLinear" and node.input[0].endswith(".codes"):
            taken = name.removesuffix(".dequantize") in known.names or ".bias" in name
            behind |= set() if taken else {name}
        elif node.op_type == "QuantizeLinear":
            behind.add(name)
    return tensors


def equal_codes(own: Path, other: Path, tensors: Mapping[str, str], x: Any) -> list[float]:
    """Return the share of equal codes of each pair of tensors."""
    ours, theirs = codes(own, tensors, x), codes(other, tensors.values(), x)
    pairs = [(ours[a], theirs[b]) for a, b in tensors.items() if a in ours and b in theirs]
    return [float((a == b).mean()) for a, b in pairs if a.shape == b.shape]


def codes(path: Path, tensors: Collection[str], x: Any) -> dict[str, Any]:
    """Return the codes of tensors, less their zero points."""
    model = onnx.load(path)
    make_unsigned(model.graph)
    zeros = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    nodes = {n.input[0]: n for n in model.graph.node if n.op_type == "QuantizeLinear"}
    chosen = {name: nodes[name] for name in tensors if name in nodes}
    for node in chosen.values():
        kind = helper.np_dtype_to_tensor_dtype(zeros[node.input[2]].dtype)
        model.graph.output.append(helper.make_tensor_value_info(node.output[0], kind, None))
    file = path.parent / "codes.onnx"
    onnx.save(model, file)
    runtime = session(str(file))
    names = [o.name for o in runtime.get_outputs()]
    values = dict(zip(names, run(runtime, [x]), strict=True))
    file.unlink()
    return {t: values[n.output[0]].astype(int) - int(zeros[n.input[2]]) for t, n in chosen.items()}


def make_unsigned(graph: onnx.GraphProto) -> None:
    """Store int8 activations as uint8, as ONNX Runtime does itself when it loads a file; where
    their codes are outputs, as in `codes`, it cannot, and then computes in float around them."""
    stored = {i.name: i for i in graph.initializer}
    kinds = ("QuantizeLinear", "DequantizeLinear")
    nodes = [n for n in graph.node if n.op_type in kinds and len(n.input) == 3]
    live = [n for n in nodes if n.input[0] not in stored and n.input[2] in stored]
    weights = {n.output[0] for n in nodes if n not in live}
    for node in live:
        zero = numpy_helper.to_array(stored[node.input[2]])
        if zero.dtype == np.int8 and node.input[0] not in weights:
            name = f"{node.input[2]}.unsigned"
            if name not in stored:
                stored[name] = numpy_helper.from_array(
                    (zero + np.int16(128)).astype(np.uint8), name
                )
                graph.initializer.append(stored[name])
            node.input[2] = name


def fidelity(source: Path, path: Path, x: Any) -> float:
    """Return the SQNR of all outputs of a file in dB."""
    pairs = zip(run(session(str(source)), [x]), run(session(str(path)), [x]), strict=True)
    ratios = [sqnr(a, b) for a, b in pairs]
    return min(float(r) for r in ratios if r is not None)


if __name__ == "__main__":
    main()
