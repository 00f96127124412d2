"""A TFLite file and what LiteRT computes of it, in the layout of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.runtime import Arrays
from qtool.backends.session import fit_channels
from qtool.core import value_names
from qtool.core.affine import Affine
from qtool.core.errors import DataError, VerificationError
from qtool.core.remedies import DataEdit
from qtool.core.types import Array
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.conversion_record import LAYOUT, ConversionRecord, read_metadata
from qtool.plugins.tflite.file import Model, load
from qtool.plugins.tflite.file.codes import affine_of, is_codes, tensor_names


@dataclass(frozen=True, eq=False)
class Port:
    """An input or an output of a file.

    Attributes:
        name: its name in the network.
        dtype: type of the tensor in the file.
        shape: shape in the layout of the network; -1 for a dynamic size.
        order: axis of the network that each axis of the tensor holds.
        params: parameters of codes; None for floats and other values.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    params: Affine | None

    def into(self, array: Array) -> Array:
        """Return values of the network as the file takes them; images of the other order of
        channels, of a file of another tool, are moved."""
        array = fit_channels(array, self.shape)
        if self.params is not None and array.dtype.kind == "f":
            array = self.params.quantize(np.ascontiguousarray(array))
        if array.ndim != len(self.order):
            raise DataError(
                f"input '{self.name}' has {array.ndim} dimensions, the file takes "
                f"{len(self.order)}: {list(self.shape)}"
            )
        return np.ascontiguousarray(array.transpose(self.order)).astype(self.dtype, copy=False)

    def takes(self, array: Array) -> bool:
        """Return whether values of the network have the sizes of the tensor, the batch apart."""
        sizes = fit_channels(array, self.shape).shape
        return all(size in (-1, n) for size, n in zip(self.shape[1:], sizes[1:], strict=True))

    def check_sizes(self, array: Array) -> None:
        """Refuse values that `takes` does not take.

        Raises:
            DataError: they have other sizes.
        """
        if not self.takes(array):
            own = ["batch" if i == 0 or s < 0 else s for i, s in enumerate(self.shape)]
            raise DataError(
                f"input '{self.name}' has the shape {list(array.shape)}, and the file was written "
                f"for [{', '.join(map(str, own))}]",
                DataEdit("pad or cut the samples to these sizes"),
            )

    def back(self, array: Array) -> Array:
        """Return values of the file in the layout of the network, codes dequantized."""
        array = array.transpose(np.argsort(self.order)) if self.order else array
        if self.params is None:
            return array
        return self.params.dequantize(np.ascontiguousarray(array))


class LitertFile:
    """A file on disk that does not change. Its properties are computed when first used.

    Args:
        path: the file.

    Raises:
        FileError: not a TFLite file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.model: Model = load(path)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """What qtool wrote into the file; empty for files of other tools."""
        return read_metadata(self.model)

    @cached_property
    def record(self) -> ConversionRecord | None:
        """What it says of its conversion; None for files of other tools.

        Raises:
            VerificationError: it is damaged.
        """
        return ConversionRecord.of(self.model)

    @cached_property
    def layers(self) -> list[str]:
        """The operator of the network that each tensor belongs to."""
        layers = list(map(_layer, tensor_names(self.model)))
        with suppress(VerificationError):
            for index, name in () if self.record is None else self.record.layers.items():
                layers[index] = name
        return layers

    @cached_property
    def inputs(self) -> list[Port]:
        return self._ports("inputs", self.model.inputs, self.model.names.inputs)

    def input_ranges(self) -> dict[str, tuple[float, float]]:
        """Return the least and the largest value of inputs that are quantized or select rows."""
        ranges = {p.name: _range(p.params) for p in self.inputs if p.params is not None}
        tensors = self.model.tensors
        for port, index in zip(self.inputs, self.model.inputs, strict=True):
            for op in self.model.operators:
                if op.name == "QUANTIZE" and op.inputs[:1] == (index,):
                    ranges[port.name] = _range(affine_of(tensors[op.outputs[0]]))
                if op.name == "GATHER" and op.inputs[1:2] == (index,):
                    table = tensors[op.inputs[0]].shape
                    axis = int(op.options.get("axis", 0))
                    ranges[port.name] = 0, (table[axis] if table else 1) - 1
        return ranges

    @cached_property
    def outputs(self) -> list[Port]:
        return self._ports("outputs", self.model.outputs, self.model.names.outputs)

    def _ports(self, kind: str, indices: Sequence[int], names: Sequence[str]) -> list[Port]:
        layout = self.metadata.get(LAYOUT)
        orders = layout.get(kind) if isinstance(layout, dict) else None
        ports = []
        for at, (index, name) in enumerate(zip(indices, names, strict=True)):
            tensor = self.model.tensors[index]
            rank = len(tensor.shape)
            order = tuple(range(rank))
            if isinstance(orders, list) and at < len(orders) and isinstance(orders[at], list):
                written = tuple(orders[at])
                order = written if sorted(map(str, written)) == sorted(map(str, order)) else order
            sizes = tensor.signature or tensor.shape
            shape = tuple(sizes[order.index(i)] for i in range(rank))
            params = affine_of(tensor) if is_codes(tensor) else None
            if (
                isinstance(layout, dict)
                and params is not None
                and _are_numbers(tensor.type, params)
            ):
                params = None
            ports.append(Port(name, tensor.type, shape, order, params))
        return ports

    def arrays(self, batch: Arrays) -> list[Array]:
        """Return the inputs of the network as the file takes them.

        Raises:
            DataError: other inputs, or sizes that a file of qtool was not written for: LiteRT runs
                some files at other sizes and gives wrong results, without an error.
        """
        if len(batch) != len(self.inputs):
            names = ", ".join(p.name for p in self.inputs)
            raise DataError(
                f"{self.path.name} takes {len(self.inputs)} inputs ({names}), not {len(batch)}"
            )
        pairs = [(port, np.asarray(a)) for port, a in zip(self.inputs, batch, strict=True)]
        arrays = [port.into(a) for port, a in pairs]
        if not self.is_foreign:
            for port, array in pairs:
                port.check_sizes(array)
        return arrays

    def takes(self, batch: Arrays) -> bool:
        """Return whether the inputs of the network have the sizes of the file, the batch apart."""
        return all(port.takes(a) for port, a in zip(self.inputs, batch, strict=True))

    def run(self, batch: Arrays, default: bool = False) -> list[Array]:
        """Return the outputs in the layout of the network, in float.

        Args:
            batch: inputs in the layout of the network.
            default: use XNNPACK, as applications do, instead of the reference kernels.
        """
        results = self.codes(batch, default)
        return [port.back(r) for port, r in zip(self.outputs, results, strict=True)]

    def codes(self, batch: Arrays, default: bool = False) -> list[Array]:
        """Return the outputs as the file has them, of the reference kernels or with XNNPACK."""
        run = litert.run_default if default else litert.run_reference
        return self.split(self.arrays(batch), lambda arrays: run(self.path, arrays))

    def split(self, arrays: Arrays, run: Any) -> list[Array]:
        """Run a batch as the file has it; sample by sample where that has a fixed batch of 1."""
        if not self.is_fixed or not arrays or not arrays[0].ndim or len(arrays[0]) == 1:
            return list(run(arrays))
        each = [run([a[i : i + 1] for a in arrays]) for i in range(len(arrays[0]))]
        return [np.concatenate(parts) for parts in zip(*each, strict=True)]

    @property
    def is_foreign(self) -> bool:
        """Whether another tool wrote the file, so that its order of channels is its own."""
        return LAYOUT not in self.metadata

    @property
    def is_fixed(self) -> bool:
        """Whether the batch is fixed to 1."""
        return bool(self.inputs) and all(p.shape[:1] == (1,) for p in self.inputs)


_HELPERS = ("pad", "image", "transpose", "requantize", "uncropped", "gate", "columns", "rank")
"""Last parts of the names of tensors that belong to the operator before or behind them."""


def _layer(tensor: str) -> str:
    """Return the operator that a tensor belongs to, by its name."""
    name = value_names.base_of(tensor) or tensor
    while name.rpartition(".")[2] in _HELPERS and name.rpartition(".")[0]:
        name = name.rpartition(".")[0]
    return name


def _are_numbers(dtype: str, params: Affine) -> bool:
    """Return whether codes are the numbers themselves: bytes, in a file of qtool."""
    return dtype == "uint8" and float(params.scale) == 1 and int(params.zero_point) == 0


def _range(params: Affine) -> tuple[float, float]:
    scale, zero = float(params.scale), int(params.zero_point)
    return (params.qtype.qmin - zero) * scale, (params.qtype.qmax - zero) * scale
