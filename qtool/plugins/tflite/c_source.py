"""A TFLite file as C source: an array of its bytes, and a minimal program around it."""

from __future__ import annotations

import math
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np

from qtool.core.atomic import atomic_path
from qtool.core.option_names import C_SUFFIXES
from qtool.plugins.tflite import tflm
from qtool.plugins.tflite.conversion_record import ENTRY, SOURCE
from qtool.plugins.tflite.file import Model, from_bytes, to_bytes
from qtool.plugins.tflite.file.codes import is_codes
from qtool.plugins.tflite.self_test import without_self_test

_PER_LINE = 12
_ARENA_MARGIN = 1024
_MEASURED = (
    f"Measured by {tflm.TITLE} on a 64-bit machine; a microcontroller needs less, which the "
    "program prints."
)
_ESTIMATED = (
    f"An estimate, since {tflm.PACKAGE} was not installed: the program prints how much it used, "
    "and allocation fails where it is too little."
)
_SIZE = re.compile(r"^const unsigned int \w+_size = (\d+);$", re.MULTILINE)
_SPECIAL = {
    "CONV_2D": "Conv2D",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2D",
    "MAX_POOL_2D": "MaxPool2D",
    "AVERAGE_POOL_2D": "AveragePool2D",
    "PADV2": "PadV2",
    "RELU6": "Relu6",
    "REVERSE_V2": "ReverseV2",
    "SELECT_V2": "SelectV2",
    "BATCH_MATMUL": "BatchMatMul",
    "CUMSUM": "CumSum",
}
"""Operators whose method of the op resolver is not their name in camel case."""


def write_c_source(file: Path, path: Path) -> None:
    """Write an array of the bytes of a file, its header, and a main next to them.

    Args:
        file: the .tflite file.
        path: file of the array; ends in .cc, .cpp or .c.

    Raises:
        FileError: the path has another ending, or the files cannot be written.
    """
    data = file.read_bytes()
    model = from_bytes(data)
    stem = "".join(c if c.isalnum() else "_" for c in path.stem)
    header, main = path.with_suffix(".h"), path.with_name(f"{path.stem}_main.cc")
    texts = {
        path: _array(stem, header.name, _without_record(model)),
        header: _header(stem),
        main: _main(model, stem, header.name, *_arena(file, model, len(data))),
    }
    for place, text in texts.items():
        with atomic_path(place, C_SUFFIXES if place == path else ()) as temporary:
            temporary.write_text(text)


def _without_record(model: Model) -> bytes:
    """Return a file without what no program on a microcontroller reads, for its flash."""
    model, record = without_self_test(model), (ENTRY, SOURCE)
    metadata = {name: value for name, value in model.metadata.items() if name not in record}
    return to_bytes(replace(model, metadata=metadata))


def _arena(file: Path, model: Model, size: int) -> tuple[int, str]:
    """Return the bytes of the arena with a margin, and where they come from.

    Where they cannot be measured they are an estimate: the file four times, for what the
    interpreter keeps of its operators and channels, and all computed tensors, none in the place of
    another.

    Args:
        file: the .tflite file.
        model: the model in it.
        size: bytes of the file.
    """
    if tflm.version() is None:
        computed = [t for t in model.tensors if t.data is None]
        tensors = sum(math.prod(t.shape) * np.dtype(t.type).itemsize for t in computed)
        return 4 * size + tensors + _ARENA_MARGIN, _ESTIMATED
    return tflm.arena(file).total + _ARENA_MARGIN, _MEASURED


def model_size(source: Path) -> int:
    """Return the bytes of the model in a file that `write_c_source` wrote."""
    sizes = _SIZE.findall(source.read_text())
    return int(sizes[-1])


def resolver_method(operator: str) -> str:
    """Return the method of MicroMutableOpResolver that adds an operator."""
    return "Add" + (_SPECIAL.get(operator) or operator.replace("_", " ").title().replace(" ", ""))


def _array(stem: str, header: str, data: bytes) -> str:
    lines = [
        "    " + " ".join(f"0x{b:02x}," for b in data[i : i + _PER_LINE])
        for i in range(0, len(data), _PER_LINE)
    ]
    body = "\n".join(lines)
    return (
        f'#include "{header}"\n\nalignas(16) const unsigned char {stem}[] = {{\n{body}\n}};\n'
        f"const unsigned int {stem}_size = {len(data)};\n"
    )


def _header(stem: str) -> str:
    guard = f"{stem.upper()}_H_"
    return (
        f"#ifndef {guard}\n#define {guard}\n\nextern const unsigned char {stem}[];\n"
        f"extern const unsigned int {stem}_size;\n\n#endif  // {guard}\n"
    )


def _main(model: Model, stem: str, header: str, arena: int, origin: str) -> str:
    kinds = list(dict.fromkeys(op.name for op in model.operators))
    adds = "\n".join(f"  resolver.{resolver_method(kind)}();" for kind in kinds)
    ends = [model.tensors[i] for i in (model.inputs[0], model.outputs[0])]
    members = ["data.int8" if is_codes(t) else "data.f" for t in ends]
    rounded = -(-arena // 16) * 16
    comment = textwrap.fill(origin, 96, initial_indent="// ", subsequent_indent="// ")
    return f"""// One inference with TensorFlow Lite Micro; link it with libtensorflow-microlite.
#include <stddef.h>
#include <stdint.h>

#include "{header}"
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_log.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/micro/system_setup.h"
#include "tensorflow/lite/schema/schema_generated.h"

{comment}
constexpr int kArenaSize = {rounded};
alignas(16) static uint8_t arena[kArenaSize];

int main() {{
  tflite::InitializeTarget();
  tflite::MicroMutableOpResolver<{len(kinds)}> resolver;
{adds}
  tflite::MicroInterpreter interpreter(tflite::GetModel({stem}), resolver, arena, kArenaSize);
  if (interpreter.AllocateTensors() != kTfLiteOk) {{
    MicroPrintf("the arena is too small");
    return 1;
  }}
  TfLiteTensor* input = interpreter.input(0);
  for (size_t i = 0; i < input->bytes / sizeof(*input->{members[0]}); ++i) {{
    input->{members[0]}[i] = 0;  // write the sample here: real = (code - zero_point) * scale
  }}
  if (interpreter.Invoke() != kTfLiteOk) return 1;
  const TfLiteTensor* output = interpreter.output(0);
  const size_t count = output->bytes / sizeof(*output->{members[1]});
  for (size_t i = 0; i < count; ++i) {{
    MicroPrintf("%d", static_cast<int>(output->{members[1]}[i]));
  }}
  MicroPrintf("arena used: %d", static_cast<int>(interpreter.arena_used_bytes()));
  return 0;
}}
"""
