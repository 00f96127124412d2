"""Files for microcontrollers: what TensorFlow Lite Micro supports, and whether it computes it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from qtool.backends.kernels.codes import all_codes
from qtool.backends.profiles import profile
from qtool.backends.runtime import Arrays
from qtool.core.errors import ExportError, VerificationError
from qtool.core.remedies import Argument, ModelEdit, Omission, Remedy
from qtool.planning.execution import BY_RECIPE
from qtool.plugins.tflite import tflm
from qtool.plugins.tflite.engine.call import params_of
from qtool.plugins.tflite.file import Model, Tensor
from qtool.plugins.tflite.kernels.micro import LEAST_SCALE
from qtool.plugins.tflite.tflite_file import TfliteFile

OPERATORS = frozenset(
    """
    ABS ADD ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_MATMUL BATCH_TO_SPACE_ND BROADCAST_TO CAST CEIL
    CONCATENATION CONV_2D COS CUMSUM DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV ELU
    EMBEDDING_LOOKUP EQUAL EXP EXPAND_DIMS FILL FLOOR FLOOR_DIV FLOOR_MOD FULLY_CONNECTED GATHER
    GATHER_ND GREATER GREATER_EQUAL HARD_SWISH L2_NORMALIZATION L2_POOL_2D LEAKY_RELU LESS
    LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC LOG_SOFTMAX MAXIMUM MAX_POOL_2D MEAN
    MINIMUM MIRROR_PAD MUL NEG NOT_EQUAL PACK PAD PADV2 PRELU QUANTIZE REDUCE_MAX REDUCE_MIN RELU
    RELU6 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 ROUND RSQRT SELECT_V2 SHAPE SIN
    SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE
    SQUEEZE STRIDED_SLICE SUB SUM SVDF TANH TRANSPOSE TRANSPOSE_CONV UNPACK ZEROS_LIKE
    """.split()  # noqa: SIM905  # a list of lines of one word would be longer
)
"""Operators of TensorFlow Lite Micro (its op resolver), of those that qtool writes or reads."""

_NOT_INT16 = ("GATHER",)
"""Those of OPERATORS that have no kernel for int16 here."""

_BORDERS = ("QUANTIZE", "DEQUANTIZE")
_SATURATING = {"LOGISTIC": "sigmoid", "TANH": "tanh"}
"""Operators that saturate early with large input scales -> keys of their kernels."""


TFLITE = Argument("--target", "tflite", "use {}")
REPLACED = ModelEdit("replace it in the model")


def check(model: Model, reasons: Mapping[str, str]) -> None:
    """Check that a model runs on a microcontroller, in integers alone.

    Args:
        model: the model.
        reasons: name of a layer -> why it stays in float.

    Raises:
        ExportError: an operator is not supported or computes in float, or the scale of its input
            gives wrong results there.
    """
    for op in model.operators:
        tensor = model.tensors[op.outputs[0]]
        if tensor.type == "float32" and op.name not in _BORDERS:
            raise _float_error(tensor.name, op.name, _reason(tensor.name, reasons))
        if op.name in _SATURATING:
            _check_input_scale(op.name, model.tensors[op.inputs[0]], tensor)
        if tensor.type == "int16" and op.name in _NOT_INT16:
            raise ExportError(
                f"'{tensor.name}' needs {op.name} on int16, which {tflm.TITLE} does not have",
                Omission("--recipe", "leave out the rule of {} for int16 activations there"),
                TFLITE,
            )
        if op.name not in OPERATORS:
            raise ExportError(
                f"'{tensor.name}' needs {op.name}, which {tflm.TITLE} does not have",
                REPLACED,
                TFLITE,
            )


def _reason(name: str, reasons: Mapping[str, str]) -> str:
    """Return why an operator stays in float: padding of a layer, for instance, as the layer."""
    while name and name not in reasons:
        name = name.rpartition(".")[0]
    return reasons.get(name, "")


def _float_error(layer: str, kind: str, reason: str) -> ExportError:
    """Return an error that says why an operator computes in float, and what to do."""
    remedy: Remedy = REPLACED
    if reason.startswith(BY_RECIPE):
        remedy = Omission("--recipe", "leave out that rule of {}")
    cause = f" ({reason})" if reason else ""
    return ExportError(
        f"'{layer}' ({kind}) stays in float{cause}, which microcontrollers are not to compute",
        remedy,
        TFLITE,
    )


def _check_input_scale(kind: str, source: Tensor, tensor: Tensor) -> None:
    """Check that TensorFlow Lite Micro computes LOGISTIC or TANH within one code of LiteRT.

    Raises:
        ExportError: the scale of its input is too small, or so large that results saturate early.
    """
    if source.quantization is None or source.type != "int8":
        return
    scale, wrong = float(source.quantization.scale[0]), ""
    if scale < LEAST_SCALE:
        wrong = "below 2**-28"
    else:
        x, out = params_of(source), params_of(tensor)
        results = [
            profile(name).bind(_SATURATING[kind], x, out)(all_codes(x)).to(torch.int64)
            for name in (tflm.PROFILE, "tflite")
        ]
        if (worst := int((results[0] - results[1]).abs().max())) > 1:
            wrong = f"{scale:.3g}, where results saturate early, {worst} codes off"
    if wrong:
        raise ExportError(
            f"'{tensor.name}' ({kind}) has an input whose scale is {wrong}, which {tflm.TITLE} "
            "computes wrongly; are the weights trained?",
            TFLITE,
        )


def compare(file: TfliteFile, batch: Arrays) -> str:
    """Run a file in TensorFlow Lite Micro, and compare its outputs with the engine.

    Args:
        file: the file.
        batch: inputs in the layout of the network.

    Returns:
        A sentence.

    Raises:
        VerificationError: an output differs, or the runtime refuses the file.
    """
    program = file.program(tflm.PROFILE)
    if program.float_nodes:
        return f"{tflm.TITLE}: not compared, since parts compute in float"
    results = tflm.run(file.path, file.arrays(batch))
    expected = file.engine_codes(program, batch)
    equal = sum(int((a == b).sum()) for a, b in zip(expected, results, strict=True))
    count = sum(a.size for a in expected)
    text = f"{tflm.TITLE}: {equal} of {count} output values identical to the integer engine"
    if equal != count:
        raise VerificationError(f"{text}; the kernels of this version compute something else")
    return text
