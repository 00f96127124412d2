"""A device "other" on which tensors of the CPU pretend to be elsewhere, for code that runs on GPUs.

Importing this registers it for the whole process. An operator computes on the CPU, but refuses
tensors of both devices at once, as CUDA does: only tensors without dimensions may mix, indices, and
copies. The tensor that torch sees has a size and no memory; what it stands for is in `_HIDDEN`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "other"
_HIDDEN: dict[int, tuple[Tensor, torch.UntypedStorage]] = {}
"""Address of a storage without memory -> the tensor on the CPU, and that storage, kept alive."""
_MAY_MIX = {"_to_copy", "index", "index_put_", "index_put", "_index_put_impl_"}
_COPIES = {"_copy_from", "_copy_from_and_resize"}
_VIEWS = {"view", "_reshape_alias", "_unsafe_view"}


def _is_here(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == NAME


def _show(cpu: Tensor) -> Tensor:
    shown: Tensor = torch._C._acc.create_empty_tensor(cpu.shape, cpu.dtype)
    storage = shown.untyped_storage()
    _HIDDEN[storage._cdata] = cpu, storage
    return shown


def _cpu_of(x: Any) -> Any:
    """The tensor on the CPU; torch makes some views without asking the device."""
    if not _is_here(x):
        return torch.device("cpu") if isinstance(x, torch.device) else x
    base = _HIDDEN[x.untyped_storage()._cdata][0]
    if base.shape == x.shape and _strides(x.shape) == x.stride() and not x.storage_offset():
        return base
    return _strided(base, x.shape, x.stride(), x.storage_offset())


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return tuple(reversed(strides)) if shape else ()


def _strided(base: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
    """A view of `base` by strides that count as if it were contiguous."""
    if base.is_contiguous():
        return base.as_strided(shape, strides, offset + base.storage_offset())
    dense, own, place = _strides(base.shape), list[int](), base.storage_offset()
    for axis, step in enumerate(dense):
        number, offset = divmod(offset, step)
        place += number * base.stride(axis)
    for size, stride in zip(shape, strides, strict=True):
        axes = (
            k
            for k, step in enumerate(dense)
            if stride % step == 0 and stride // step * (size - 1) < base.shape[k]
        )
        axis = next(axes, None)
        if axis is None:
            raise RuntimeError(f"no view of {tuple(base.shape)} by strides {tuple(strides)}")
        own.append(base.stride(axis) * (stride // dense[axis]))
    return base.as_strided(shape, own, place)


def _compute(operator: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    name = operator._schema.name.partition("::")[2]
    if name in _COPIES:
        _cpu_of(args[1]).copy_(_cpu_of(args[0]))
        return args[1]
    leaves, spec = tree_flatten((args, keywords))
    if name not in _MAY_MIX and any(
        isinstance(x, Tensor) and x.dim() and not _is_here(x) for x in leaves
    ):
        raise RuntimeError(f"Expected all tensors to be on the same device: {operator}")
    shown = {id(_cpu_of(x)): x for x in leaves if _is_here(x)}
    inner, named = tree_unflatten([_cpu_of(x) for x in leaves], spec)
    if name in _VIEWS:
        result = inner[0].reshape(inner[1])
    elif name == "as_strided":
        base, offset = _HIDDEN[args[0].untyped_storage()._cdata][0], (*args[3:], None)[0]
        result = _strided(base, *args[1:3], args[0].storage_offset() if offset is None else offset)
    else:
        result = operator(*inner, **named)
    if torch.device(keywords.get("device") or NAME).type == "cpu":
        return result

    def show(x: Any) -> Any:
        if not isinstance(x, Tensor) or _is_here(x):
            return x
        if not operator._schema.is_mutable or id(x) not in shown:
            return _show(x)
        known = shown[id(x)]  # written to, and perhaps given a size
        if known.shape != x.shape:
            known.data = _show(x)
        return known

    return tree_map(show, result)


def _fallback(operator: Any, *args: Any, **keywords: Any) -> Any:
    with torch.inference_mode(False), torch.no_grad():
        return _compute(operator, args, keywords)


def _convolution(*args: Any) -> Any:
    return _fallback(torch.ops.aten.convolution.default, *args)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    bias = [gradient.shape[1]]
    return _fallback(torch.ops.aten.convolution_backward.default, gradient, x, weight, bias, *rest)


_setup_privateuseone_for_python_backend(NAME)
torch.__future__.set_overwrite_module_params_on_conversion(True)
_ANY, _ATEN = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_ANY.fallback(_fallback, "PrivateUse1")
_ATEN.impl("convolution_overrideable", _convolution, "PrivateUse1")
_ATEN.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
