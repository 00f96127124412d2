"""Making the self-test of a TFLite file, from the integer engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qtool.backends.onnx.self_test_format import SelfTest
from qtool.backends.onnxruntime.self_test.inputs import run_count, spec_of_codes, spec_of_sample
from qtool.backends.onnxruntime.self_test.observed_tensors import exact_digests
from qtool.core.affine import Affine
from qtool.core.errors import DataError, KernelError, VerificationError
from qtool.core.types import Array
from qtool.plugins.tflite.file import Model
from qtool.plugins.tflite.file.codes import affine_of
from qtool.plugins.tflite.self_test import generated_inputs
from qtool.plugins.tflite.tflite_file import TfliteFile

_PROFILES = ("tflite", "tflite-2")
"""Those of the reference kernels of all versions of LiteRT."""


def make_self_test(file: TfliteFile, sample: Sequence[Array], macs: int = 0) -> SelfTest:
    """Return the self-test of a file, without its digest.

    Args:
        file: the file.
        sample: inputs in the layout of the network; they give the sizes of dynamic dimensions and
            the ranges of inputs that are not quantized.
        macs: multiply-accumulates of a sample; a small model is tested with more samples.
    """
    try:
        return _with_results(file, sample, macs)
    except (DataError, KernelError, RuntimeError, VerificationError):  # torch: sizes do not fit
        return SelfTest("", missing="it does not run on generated inputs")


def _with_results(file: TfliteFile, sample: Sequence[Array], macs: int) -> SelfTest:
    pairs = zip(file.model.inputs, sample, strict=True)
    specs = []
    for index, array in pairs:
        params, values = _params(file.model, index), np.asarray(array)
        few = values[:1] if file.is_fixed else values
        specs.append(spec_of_sample(few) if params is None else spec_of_codes(few.shape, params))
    test = SelfTest("", tuple(specs), run_count(specs, macs))
    programs = [file.program(name) for name in _PROFILES]
    inexact = programs[0].influenced_by_float
    kinds = "".join("-" if name in inexact else "e" for name in programs[0].outputs)
    inputs, digests = list(generated_inputs(file, test)), {}
    if "e" in kinds:
        for program in programs:
            runs = [file.engine_codes(program, each) for each in inputs]
            digests[program.profile] = exact_digests(kinds, runs, kinds.count("e"))
    return replace(test, kinds=kinds, digests=digests)


def _params(model: Model, index: int) -> Affine | None:
    """Return the parameters of an input: its own, or those of the operator that quantizes it."""
    readers = (o for o in model.operators if o.name == "QUANTIZE" and o.inputs[:1] == (index,))
    places = (index, *(o.outputs[0] for o in readers))
    quantized = [t for t in (model.tensors[i] for i in places) if t.quantization is not None]
    params = affine_of(quantized[0]) if quantized else None
    return params if params is None or params.axis is None else None
