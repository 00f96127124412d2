"""How a model is quantized and how its file is written, as records: the options of commands and the
keywords of functions are their fields. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from qtool.core.limits import DAY, Range
from qtool.core.option_names import (
    DEFAULT_OBSERVER,
    FOLDER_LAYOUTS,
    IMAGE_LAYOUTS,
    Accuracy,
    Mode,
)
from qtool.core.option_records import OptionRecord, option

DynamicSizes = Mapping[str, Mapping[int, str]]
"""Input -> dimension -> name of its size, which varies at run time."""


class _Keywords(TypedDict, total=False):
    target: str | None
    recipe: Any
    recover: Iterable[str] | None
    ignore: Iterable[str] | None
    dynamic: DynamicSizes | None


class TuneKeywords(_Keywords, total=False):
    """Fields of `QuantizeOptions` that `qtool.tune` has as keywords, for type checkers."""

    observer: str


class ConvertKeywords(_Keywords, total=False):
    """Those of `qtool.convert`."""

    mode: Mode | None
    accuracy: Accuracy | None


class QuantizeKeywords(TuneKeywords, ConvertKeywords, total=False):
    """Those of `qtool.quantize` and `qtool.calibrate`."""


@dataclass(frozen=True)
class QuantizeOptions(OptionRecord):
    """How a model is quantized: the keywords of `qtool.quantize`.

    In Python a recipe is also a Recipe, or a list of rules such as {"select": "classifier.*", "as":
    "float"}; dynamic sizes are input -> dimension -> name, see `qtool.capture_model`.

    Attributes:
        target: runtime to quantize for; by default onnxruntime, for a .tflite file tflite, for C
            source tflite-micro.
        observer: range estimator, optionally with a parameter: percentile:99.99.
        recipe: a .toml or .json file with rules for individual layers, such as rules = [{select =
            "head.*", as = "float"}].
        mode: quantization scheme for layers that no rule of the recipe matches; by default static,
            for transformers in .tflite files dynamic.
        accuracy: how much effort to spend on recovering accuracy; by default balanced.
        recover: run exactly these accuracy recovery steps: output-equalization,
            sensitive-layers, cross-layer-equalization, smooth-quant, gptq, bias-correction,
            learned-scales.
        ignore: leave a node in float: its name, a glob such as head.*, re: and a regex, or op: and
            an operator such as op:linear. Repeatable.
        dynamic: dimension whose size varies at run time, besides dimension 0 of every input and
            those that differ between the first batches.
    """

    target: str | None = option(None, kind="target")
    observer: str = option(DEFAULT_OBSERVER, kind="observer")
    recipe: Any = option(None, kind="recipe", metavar="FILE")
    mode: Mode | None = option(None, kind="mode")
    accuracy: Accuracy | None = option(None, kind="accuracy")
    recover: Iterable[str] | None = option(None, kind="steps", metavar="STEP,...")
    ignore: Iterable[str] | None = option(None, repeated=True, metavar="NODE")
    dynamic: DynamicSizes | None = option(
        None, kind="dynamic", repeated=True, metavar="INPUT:DIM[=NAME]"
    )

    @property
    def rules(self) -> tuple[Any, ...]:
        """The arguments of `Recipe.of`: recipe, mode, accuracy, recover, ignore."""
        return self.recipe, self.mode, self.accuracy, self.recover, self.ignore

    def keywords(self, *but: str) -> Any:
        """Return the options as keywords of `qtool.quantize`, without some of them."""
        return {name: value for name, value in vars(self).items() if name not in but}


class ExportKeywords(TypedDict, total=False):
    """Those of `QuantizedModel.export`, for type checkers."""

    format: str
    external_data: bool
    layout: str
    interface: str | None
    batch: str | None
    timing: float | None


@dataclass(frozen=True)
class FileOptions(OptionRecord):
    """How a file is written and measured, and the goals that it is judged by.

    Attributes:
        format: qdq has float operators between QuantizeLinear and DequantizeLinear, qoperator
            integer operators such as QLinearConv. A name in .tflite asks for tflite.
        external_data: write the weights to a separate file next to the model; always done above
            2 GiB.
        layout: layout of what is written: of a transformers folder for the library that loads it
            (shared, the default, is for all of them), or of images at the interface of a .tflite
            file (nhwc is the default, nchw PyTorch's).
        interface: inputs and outputs of a .tflite file; by default int8 on microcontrollers, else
            float.
        batch: samples that a .tflite file takes at a time; by default 1 on microcontrollers and
            where that is faster, else any number.
        float_file: write the float model, too, as a file that bench, compare and gate take.
        timing: time limit of the speed comparison with the float model in seconds, if the target's
            runtime is on this machine; 0 skips it.
        min_coverage: the least share of the MACs (0 to 1) in integer kernels; a command exits with
            1 below it.
        min_sqnr: the least SQNR of an output against the float model in dB; a command exits with 1
            below it.

    Raises:
        OptionError: a number is NaN, infinite or out of its range.
    """

    format: str = option("qdq", kind="format")
    external_data: bool = option(False)
    layout: str | None = option(None, choices=(*FOLDER_LAYOUTS, *IMAGE_LAYOUTS))
    interface: str | None = option(None, choices=("float", "int8"))
    batch: str | None = option(None, choices=("1", "dynamic"))
    float_file: Path | None = option(None, kind="path")
    timing: float = option(1.0, "seconds", range=Range(0, DAY))
    min_coverage: float | None = option(None, range=Range(0, 1))
    min_sqnr: float | None = option(None, range=Range())
