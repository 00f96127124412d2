"""Run an ONNX file and compare its outputs with those of the fake-quantized model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.runtime import Runtime
from qtool.verification.parity import TOLERANCE, Parity, difference

Arrays = Sequence[np.ndarray[Any, Any]]


def check_parity(
    file: ExportedFile | str | Path,
    inputs: Arrays,
    expected: Arrays,
    steps: Sequence[float | None],
    runtime: Runtime | None = ONNXRUNTIME,
    written: tuple[Arrays, Arrays] | None = None,
) -> Parity:
    """Run a file on one batch, as written and optimised, and compare its outputs.

    Args:
        file: the file.
        inputs: arrays in the order of the file's inputs.
        expected: outputs of the fake-quantized model.
        steps: for each output the size of a code (its scale), or None for a float output.
        runtime: the target's runtime; None runs the file as written only.
        written: expected outputs and outputs as written of another batch, if they are known.
    """
    exported = ExportedFile.of(file)
    reference, as_written = written or (expected, exported.run_as_written(inputs))
    if runtime is None:
        optimised = None
    elif runtime is ONNXRUNTIME:
        optimised = exported.run(inputs)
    else:
        optimised = runtime.run(exported.path, inputs)
    samples = len(inputs[0]) if inputs and inputs[0].ndim else 1
    return Parity(
        samples,
        difference(reference, as_written, steps),
        None if optimised is None else difference(expected, optimised, steps),
        TOLERANCE,
        "" if runtime is None or runtime is ONNXRUNTIME else str(runtime),
    )
