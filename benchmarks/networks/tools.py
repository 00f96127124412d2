"""The tools, and how each makes a file; what is no command of qtool runs in a process of its own.

    python -m benchmarks.networks.tools TOOL FLOAT OUT FACTORY [--whole]

FLOAT is the float file, calibration.npz in this folder has the samples, and FACTORY is the torch
module as benchmarks/networks/factories.py has it, or "".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["DEFAULTS", "TOOLS", "Job", "Tool", "prepare"]

PER_CHANNEL = 13  # first operator set of ONNX with scales per channel
PERCENTILE = 99.999


@dataclass(frozen=True)
class Job:
    """What a tool makes a file of.

    Attributes:
        plain: the float file.
        factory: name of the torch module in factories.py, or "".
        whole: a sample is a whole batch.
    """

    plain: Path
    out: Path
    factory: str
    whole: bool

    def samples(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield samples one by one: files may take no more."""
        with np.load("calibration.npz") as stored:
            arrays = {name: stored[name] for name in stored.files}
        for i in range(len(next(iter(arrays.values())))):
            yield {k: np.asarray(a[i]) if self.whole else a[i : i + 1] for k, a in arrays.items()}


@dataclass(frozen=True)
class Tool:
    """One tool with its options.

    Attributes:
        package: whose version the page names.
        make: writes `Job.out`; None: `qtool quantize` does.
        options: of `qtool quantize`.
        suffix: of its files; those of .tflite begin with the float .tflite file that qtool writes.
    """

    package: str
    make: Callable[[Job], None] | None = None
    options: tuple[str, ...] = ()
    suffix: str = ".onnx"


def _named(job: Job) -> Iterator[dict[str, np.ndarray]]:
    """Samples by the names of the file's inputs; by place where names differ."""
    import onnx

    names = [i.name for i in onnx.load(job.plain, load_external_data=False).graph.input]
    for sample in job.samples():
        known = set(names) <= set(sample)
        yield sample if known else dict(zip(names, sample.values(), strict=True))


def prepare(job: Job) -> Path:
    """Write the file that onnxruntime.quantization takes: of an operator set with scales per
    channel, with symbolic shapes, or without them where that fails."""
    import onnx
    from onnx import version_converter
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, ready = str(job.plain), str(job.out.with_suffix(".ready.onnx"))
    model = onnx.load(plain)
    version = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if version < PER_CHANNEL:
        onnx.save(version_converter.convert_version(model, PER_CHANNEL), ready)
        plain = ready
    try:
        quant_pre_process(plain, ready)
    except Exception:  # noqa: BLE001  # symbolic shapes fail in many ways
        quant_pre_process(plain, ready, skip_symbolic_shape=True)
    return Path(ready)


def _static(job: Job, **options: Any) -> None:
    """QDQ with a scale per channel of the weights."""
    from onnxruntime import quantization as q

    rows = _named(job)

    class Samples(q.CalibrationDataReader):
        def get_next(self) -> Any:
            return next(rows, None)

    q.quantize_static(prepare(job), job.out, Samples(), per_channel=True, **options)


def _percentile(job: Job) -> None:
    from onnxruntime import quantization as q

    _static(
        job,
        activation_type=q.QuantType.QUInt8,
        weight_type=q.QuantType.QInt8,
        calibrate_method=q.CalibrationMethod.Percentile,
        extra_options={"CalibPercentile": PERCENTILE},
    )


def _dynamic(job: Job) -> None:
    from onnxruntime import quantization as q

    try:
        q.quantize_dynamic(job.plain, job.out)
    except Exception:  # noqa: BLE001  # constants that are nodes, for one
        q.quantize_dynamic(prepare(job), job.out)


def _nncf(job: Job) -> None:
    import nncf
    import onnx

    data = list(_named(job))
    model = onnx.load(job.plain)
    onnx.save(nncf.quantize(model, nncf.Dataset(data), subset_size=len(data)), job.out)


def _aimet(job: Job) -> None:
    import onnx
    from aimet_onnx.cross_layer_equalization import equalize_model
    from aimet_onnx.quantsim import QuantizationSimModel

    model = onnx.load(job.plain)
    equalize_model(model)
    sim = QuantizationSimModel(model)
    sim.compute_encodings(list(_named(job)))
    onnx.save(sim.to_onnx_qdq(), job.out)


def _torchao(job: Job) -> None:
    import torch
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from benchmarks.networks import factories

    if not job.factory:
        raise ValueError("torchao takes a torch module, and this network is an ONNX file")
    rows = [[torch.from_numpy(a) for a in sample.values()] for sample in job.samples()]
    example = tuple(torch.cat(two) for two in zip(*rows[:2], strict=True))
    shapes = tuple(dict.fromkeys(range(t.dim()), torch.export.Dim.AUTO) for t in example)
    model = getattr(factories, job.factory)()
    exported = torch.export.export(model, example, dynamic_shapes=shapes).module()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(exported, quantizer)
    with torch.no_grad():
        for row in rows:
            prepared(*row)
    made = convert_pt2e(prepared)
    torch.onnx.export(made, example, job.out, dynamic_shapes=shapes, dynamo=True)


def _ai_edge(job: Job) -> None:
    """Static int8 of activations and weights, of a float .tflite file with one signature."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    model = Interpreter(str(job.plain))
    ((signature, ends),) = model.get_signature_list().items()
    names, rows = ends["inputs"], job.samples()
    data = [dict(zip(names, _in_its_layout(model, r), strict=True)) for r in rows]
    made = quantizer.Quantizer(str(job.plain))
    made.load_quantization_recipe(recipe.static_wi8_ai8())
    made.quantize(made.calibrate({signature: data})).export_model(str(job.out))


def _in_its_layout(model: Any, sample: dict[str, np.ndarray]) -> list[np.ndarray]:
    from benchmarks.measured import transposed

    shapes = (tuple(d["shape_signature"]) for d in model.get_input_details())
    return [transposed(a, shape) for a, shape in zip(sample.values(), shapes, strict=True)]


TOOLS: dict[str, Tool] = {
    "qtool": Tool("qtool"),
    "qtool-fast": Tool("qtool", options=("--accuracy", "fast")),
    "qtool-best": Tool("qtool", options=("--accuracy", "best")),
    "qtool-dynamic": Tool("qtool", options=("--mode", "dynamic")),
    "qtool-tflite": Tool("qtool", suffix=".tflite"),
    "static": Tool("onnxruntime", _static),
    "percentile": Tool("onnxruntime", _percentile),
    "dynamic": Tool("onnxruntime", _dynamic),
    "nncf": Tool("nncf", _nncf),
    "torchao": Tool("torchao", _torchao),
    "aimet": Tool("aimet-onnx", _aimet),
    "ai-edge": Tool("ai-edge-quantizer", _ai_edge, suffix=".tflite"),
}
DEFAULTS = ("qtool", "static", "dynamic")


def main() -> None:
    name, plain, out, factory, *whole = sys.argv[1:]
    make = TOOLS[name].make
    assert make is not None
    make(Job(Path(plain), Path(out), factory, bool(whole)))


if __name__ == "__main__":
    main()
