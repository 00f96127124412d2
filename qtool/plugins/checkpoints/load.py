"""Builds the model of a quantized checkpoint: each layer on its codes, all others in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qtool import observers
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.schemes import KERNEL_BLOCKS
from qtool.core.types import INT2, INT4, INT8, UINT2, UINT4, UINT8
from qtool.frontends.coded_linear import STACKED, CodedLinear, WeightCodes
from qtool.frontends.huggingface.meta_init import build_model, init_empty_weights, stored_names
from qtool.frontends.huggingface.safetensors_files import StoredTensor, WeightFiles, stacked_experts
from qtool.plugins.checkpoints.formats import read_awq, read_compressed, read_gptq
from qtool.plugins.checkpoints.record import AGAIN, CheckpointError, Stored, Tensors

_SIGNED = {2: INT2, 4: INT4, 8: INT8}
_UNSIGNED = {2: UINT2, 4: UINT4, 8: UINT8}
_ZEROS = ("qweight", "qzeros", "scales")
_COMPRESSED = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
_INPUTS = ("input_scale", "input_zero_point")


@dataclass(frozen=True)
class _Method:
    """How a tool stores layers.

    Attributes:
        read: tensors of a layer, its name, configuration -> codes.
        marks: parts of names of tensors that only its layers have.
        parts: parts of names of all tensors that are read for a weight, or not needed.
    """

    read: Callable[[Tensors, str, Mapping[str, Any]], Stored]
    marks: tuple[str, ...]
    parts: tuple[str, ...]


_METHODS = {
    "gptq": _Method(read_gptq, _ZEROS[:1], (*_ZEROS, "g_idx")),
    "awq": _Method(read_awq, _ZEROS[:1], _ZEROS),
    "compressed-tensors": _Method(
        read_compressed, _COMPRESSED[:2], ("weight", *_COMPRESSED, *_INPUTS)
    ),
}


def load_checkpoint(
    path: Path, config: Mapping[str, Any], quantization: Mapping[str, Any], task: str | None
) -> nn.Module:
    """Build a model of transformers, whose layers with codes are `CodedLinear`.

    Args:
        path: the folder.
        config: its config.json.
        quantization: its `quantization_config`.
        task: as for `load_model`.

    Raises:
        CaptureError: the model cannot be built, or weights are missing.
        CheckpointError: the codes of a layer contradict the configuration, or have no form in a
            file.
    """
    method = str(quantization["quant_method"])
    with init_empty_weights():
        model = build_model(path, config, task)
    files = _CodedFiles(path, _METHODS[method], quantization)
    if not files.codes:
        raise CheckpointError(f"{path}: config.json says {method}, and no layer has codes", AGAIN)
    files.drop_empty_biases(model)
    shared: dict[int, nn.Parameter] = {}
    for name, stored in stored_names(model, files).items():
        owner, _, part = name.rpartition(".")
        module = model.get_submodule(owner)
        if stored in files.codes:
            if type(module) is not nn.Linear:
                kind = type(module).__name__
                raise CheckpointError(f"{path}: '{owner}' has codes, and is no Linear but {kind}")
            with files.errors_of(stored):
                model.set_submodule(owner, _layer(files.codes.pop(stored), module.bias))
        elif rows := files.experts(stored):
            with files.errors_of(stored):
                module._parameters[part], codes = _experts(rows)
            setattr(module, STACKED, {**getattr(module, STACKED, {}), part: codes})
        elif part in module._parameters:
            own = id(module._parameters[part])
            shared.setdefault(own, nn.Parameter(files.read(stored), requires_grad=False))
            module._parameters[part] = shared[own]
        else:
            module._buffers[part] = files.read(stored)
    return model


class _CodedFiles(WeightFiles):
    """Weight files in which each layer with codes has a weight in place of the stored tensors.

    Attributes:
        codes: name of the weight -> its codes.
    """

    def __init__(self, folder: Path, method: _Method, config: Mapping[str, Any]) -> None:
        super().__init__(folder)
        self.codes: dict[str, Stored] = {}
        split = {name: name.rpartition(".") for name in self.tensors}
        layers = {layer for layer, _, part in split.values() if part in method.marks}
        for layer in sorted(layers):
            names = {p: n for n, (own, _, p) in split.items() if own == layer and p in method.parts}
            weight = f"{layer}.weight"
            with self.errors_of(weight):
                tensors = {part: self.read(name) for part, name in names.items()}
                codes = self.codes[weight] = method.read(tensors, layer, config)
            file = self.tensors[next(iter(names.values()))].file
            for name in names.values():
                del self.tensors[name]
            self.tensors[weight] = StoredTensor(file, tuple(codes.codes.shape))
        self.stacks = stacked_experts(self.tensors)

    def experts(self, name: str) -> list[list[Stored]]:
        """Return the codes of a stack, the parts of each expert; [] of another tensor.

        Raises:
            CheckpointError: some parts have codes, and others have none.
        """
        parts = self.stacks.get(name, ())
        coded = [part in self.codes for each in parts for part in each]
        if not any(coded):
            return []
        with self.errors_of(name):
            if not all(coded):
                raise CheckpointError("some of its experts have codes, and others have none")
        return [[self.codes.pop(part) for part in each] for each in parts]

    @contextmanager
    def errors_of(self, weight: str) -> Iterator[None]:
        """Name folder and layer in errors."""
        try:
            yield
        except CheckpointError as error:
            layer = weight.removesuffix(".weight")
            raise CheckpointError(
                f"{self.folder}, '{layer}': {error.problem}", *error.remedies
            ) from error

    def drop_empty_biases(self, model: nn.Module) -> None:
        """Leave out biases of zeros, which some versions store for layers that have none."""
        own = [name for name in model.state_dict() if name.endswith(".bias")]
        for weight in self.codes:
            name = f"{weight.removesuffix('.weight')}.bias"
            lacks = not any(f".{bias}".endswith(f".{name}") for bias in own)
            if name in self.tensors and lacks and not self.read(name).any():
                del self.tensors[name]


def _layer(stored: Stored, bias: nn.Parameter | None) -> CodedLinear:
    """Return the layer of a weight, whose inputs are in the order of its groups."""
    codes, order = stored.codes, None
    if stored.groups is not None:
        order = torch.argsort(stored.groups, stable=True)
        codes = codes[:, order]
    weight, params = _dequantized(stored, codes)
    return CodedLinear(weight, bias, WeightCodes(params, stored.dynamic), order)


def _experts(experts: Sequence[Sequence[Stored]]) -> tuple[nn.Parameter, WeightCodes]:
    """Return the weight of all experts, [experts, outputs, inputs], and its codes.

    Rows of gate and up are in turn among the codes, as `passes.experts` stores them.
    """
    every = [part for parts in experts for part in parts]
    forms = {(s.bits, s.group, s.codes.shape, s.dynamic, s.zero is None) for s in every}
    if len(forms) > 1:
        raise CheckpointError("its experts have codes of several forms")
    if any(s.groups is not None for s in every):
        raise CheckpointError("its inputs are in an order of their own, and experts share them")

    def rows(kind: str) -> torch.Tensor:
        own = [torch.stack([getattr(part, kind) for part in parts], 1) for parts in experts]
        return torch.stack(own).flatten(0, 2)

    zero = None if every[0].zero is None else rows("zero")
    stored = replace(every[0], codes=rows("codes"), scale=rows("scale"), zero=zero)
    weight, params = _dequantized(stored, stored.codes)
    halves = weight.unflatten(0, (len(experts), -1, len(experts[0]))).transpose(1, 2)
    parameter = nn.Parameter(halves.flatten(1, 2), requires_grad=False)
    return parameter, WeightCodes(params, stored.dynamic)


def _dequantized(stored: Stored, codes: torch.Tensor) -> tuple[torch.Tensor, QuantParams]:
    """Return the weight [outputs, inputs] of codes, and their parameters."""
    codes, params = _parameters(stored, codes)
    weight = params.dequantize(codes)
    if not weight.isfinite().all() or not torch.equal(params.quantize(weight), codes):
        raise CheckpointError("its scales are too small or too large for its codes", AGAIN)
    return weight, params


def _parameters(stored: Stored, codes: torch.Tensor) -> tuple[torch.Tensor, QuantParams]:
    """Return codes and parameters in the forms of operators.

    A scale of 0 becomes 1, and its codes the zero point: all of these weights are zero.
    """
    scale, bits = stored.scale.contiguous(), stored.bits
    half = 2 ** (bits - 1)
    symmetric = stored.zero is None or bool((stored.zero == half).all())
    zero = torch.full(scale.shape, half) if stored.zero is None else stored.zero.contiguous()
    empty = scale == 0
    if not scale.isfinite().all() or bool(((scale < observers.MIN_SCALE) & ~empty).any()):
        raise CheckpointError("it has scales that are negative, Inf, NaN or below 2^-60", AGAIN)
    spread = empty.repeat_interleave(stored.group, 1)[:, : codes.shape[1]]
    if bool(empty.any()):
        fill = zero.repeat_interleave(stored.group, 1)[:, : codes.shape[1]]
        codes, scale = codes.where(~spread, fill.to(torch.uint8)), scale.where(~empty, 1.0)
    offset = half if symmetric else 0
    qtype = (_SIGNED if symmetric else _UNSIGNED)[bits]
    signed = (codes.to(torch.int16) - offset).to(torch_dtype(qtype))
    if scale.shape[1] == 1:
        if stored.dynamic and not symmetric:
            raise CheckpointError("its int8 weights have zero points, and its kernel takes none")
        return signed, QuantParams(qtype, scale[:, 0], zero[:, 0] - offset, 0)
    if stored.dynamic:
        raise CheckpointError("its int8 weights have several scales for an output, as no kernel")
    block = max((b for b in KERNEL_BLOCKS[bits] if stored.group % b == 0), default=0)
    if not block:
        least = min(KERNEL_BLOCKS[bits])
        raise CheckpointError(
            f"its groups of {stored.group} inputs are no multiple of {least}, the shortest block "
            f"of a kernel for {bits} bits"
        )
    scale, zero = (t.repeat_interleave(stored.group // block, 1) for t in (scale, zero - offset))
    return signed, QuantParams(qtype, scale, zero, 1, block)
