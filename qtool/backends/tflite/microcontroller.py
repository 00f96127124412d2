"""Files for microcontrollers: what TensorFlow Lite Micro supports, and how much memory it needs."""

from __future__ import annotations

from qtool.backends.runtime import Arrays
from qtool.backends.tflite import tflm
from qtool.backends.tflite.conversion_record import ENTRY
from qtool.backends.tflite.file import Model, Tensor
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.core.argument_names import argument
from qtool.core.errors import ExportError, VerificationError

TARGET = "tflite-micro"
"""The name of the target."""

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

_BORDERS = ("QUANTIZE", "DEQUANTIZE")
_LEAST_SCALE = 2.0**-28
"""Of inputs of LOGISTIC and TANH, whose kernels there shift by a negative number of bits below."""


def check(model: Model) -> None:
    """Check that a model runs on a microcontroller, in integers alone.

    Raises:
        ExportError: an operator is not supported, or computes in float.
    """
    for op in model.operators:
        tensor = model.tensors[op.outputs[0]]
        if tensor.type == "float32" and op.name not in _BORDERS:
            raise ExportError(
                f"'{tensor.name}' ({op.name}) stays in float, which microcontrollers are not to "
                f"compute; replace it in the model, or use {argument('--target', 'tflite')}"
            )
        if op.name in ("LOGISTIC", "TANH") and _is_too_fine(model.tensors[op.inputs[0]]):
            raise ExportError(
                f"'{tensor.name}' ({op.name}) has an input whose scale is below 2**-28, which "
                f"{tflm.TITLE} computes wrongly; are the weights trained? use "
                f"{argument('--target', 'tflite')}"
            )
        if op.name not in OPERATORS:
            raise ExportError(
                f"'{tensor.name}' needs {op.name}, which {tflm.TITLE} does not have; replace it in "
                f"the model, or use {argument('--target', 'tflite')}"
            )


def _is_too_fine(tensor: Tensor) -> bool:
    return tensor.quantization is not None and bool(tensor.quantization.scale[0] < _LEAST_SCALE)


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


def flash_bytes(file: TfliteFile) -> int:
    """Return the bytes of a file as a microcontroller has it: without what only qtool reads."""
    return file.path.stat().st_size - len(file.model.metadata.get(ENTRY, b""))


def describe(file: TfliteFile) -> str:
    """Describe the memory that a network needs, in a sentence."""
    flash = f"flash {flash_bytes(file) / 1024:.1f} KiB"
    if tflm.version() is None:
        return f"{flash}; pip install {tflm.PACKAGE} reports the size of the arena"
    try:
        needed = tflm.arena(file.path)
    except VerificationError as error:
        return f"{flash}; {error}"
    return (
        f"{flash}, arena {needed.total / 1024:.1f} KiB ({needed.tensors / 1024:.1f} of tensors, "
        f"{needed.persistent / 1024:.1f} persistent; 64-bit, a microcontroller needs less)"
    )
