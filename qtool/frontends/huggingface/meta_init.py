"""Builds models of a folder on the meta device: without memory for their weights.

Layers create weights with `torch.empty`. Large ones are created on the meta device and replaced by
a single expanded element, which torch traces like any tensor. Small tensors are real, since a
model may compute tables from its configuration (rotary frequencies) that no file stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qtool.core.errors import CaptureError, QtoolError
from qtool.core.process_lock import silence_logging
from qtool.core.remedies import Argument, OtherFile
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache
from qtool.frontends.huggingface.encoder_decoder import part_for_task
from qtool.frontends.huggingface.foreign_weights import (
    check_float_weights,
    coded,
    missing_weights,
)
from qtool.frontends.huggingface.model_folder import (
    EXPERTS,
    WITH_PAST,
    experts_options,
    model_class,
    no_pooler_options,
    read_config,
    timm_arguments,
)
from qtool.frontends.huggingface.returned_cache import disable_cache
from qtool.frontends.huggingface.safetensors_files import WeightFiles, check_layers, model_name
from qtool.frontends.huggingface.unused_weights import check_unused_weights
from qtool.frontends.optional_packages import require
from qtool.frontends.torch.exported_program import first_line

TRIAL_TOKENS = 64  # rows of the head in a trial; all of them would need its memory
MIN_META_ELEMENTS = 1 << 16  # larger tensors are created on the meta device


class init_empty_weights(TorchFunctionMode):  # noqa: N801  # used as a function: with qtool.init_empty_weights(): ...
    """A context in which large layers allocate no memory for their weights.

    Use it to build a model of any size for `quantize_by_blocks`.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is torch.empty and prod(_sizes(args, options)) > MIN_META_ELEMENTS:
            options["device"] = "meta"
        return func(*args, **options)


def _sizes(args: Any, options: Mapping[str, Any]) -> list[int]:
    sizes = args or options.get("size", ())
    nested = len(sizes) == 1 and isinstance(sizes[0], list | tuple)
    return [int(size) for size in (sizes[0] if nested else sizes)]


def load_without_weights(
    path: Path, task: str | None = None, attention: str = "fused", cache: str = "float"
) -> nn.Module:
    """Build the model of a transformers or timm folder in eval mode, without its weights.

    Args:
        path: the folder.
        task: as for `load_model`.
        attention: as for `load_model`.
        cache: "float" or "int8", the KV cache of a decoder; its scales in int8 are 1.

    Raises:
        CaptureError: the model cannot be built, or its package is missing.
    """
    check_float_weights(path)
    config = read_config(path)
    check_layers(path, config)
    if coded(path, config) is not None:
        raise CaptureError(
            f"{path} holds codes of a quantized checkpoint, which are not converted block by block",
            Argument("--memory", text="raise {}"),
        )
    try:
        with silence_logging(), init_empty_weights():
            model = _build(path, config, task)
    except QtoolError:
        raise
    except (Exception, SystemExit) as error:
        why = first_line(error.__cause__ or error)
        raise CaptureError(f"{path} cannot be loaded: {why}") from error
    expand_meta_parameters(model)
    if isinstance(model, DecoderWithCache):
        with silence_logging(), trial_weights(model):
            _prepare_decoder(model, attention, cache)
    elif cache != "float":
        raise CaptureError("an int8 KV cache is for the task text-generation-with-past")
    return model


@torch.no_grad()
def _prepare_decoder(model: DecoderWithCache, attention: str, cache: str) -> None:
    """Choose attention and cache of a decoder that has weights for a trial."""
    ids = torch.arange(2)[None]
    present = model(ids, torch.ones_like(ids), ())["present"]
    model.empty_cache = [{kind: t[:, :, :0] for kind, t in pair.items()} for pair in present]
    if attention == "fused":
        model.fuse_attention()
    if cache == "int8":
        ones = [
            {k: torch.ones(t.shape[1] * t.shape[3], dtype=torch.float32) for k, t in p.items()}
            for p in present
        ]
        model.use_int8_cache(ones, ids)


@contextmanager
def trial_weights(model: DecoderWithCache) -> Iterator[None]:
    """Give the expanded parameters of a decoder values that hardly need memory in this context.

    Element i, j is that of i + j in one row of noise. The head has a few outputs only.
    """
    random, replaced = torch.Generator().manual_seed(0), list[tuple[nn.Module, str, nn.Parameter]]()
    decoder: Any = model.model
    head = decoder.get_output_embeddings()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or any(parameter.stride()):
                continue
            shape = list(parameter.shape)
            if module is head:
                shape[0] = min(shape[0], TRIAL_TOKENS)
            noise = (
                torch.randn(sum(shape), generator=random, dtype=torch.float32) / shape[-1] ** 0.5
            )
            values = noise.as_strided(shape, [1] * len(shape))
            replaced.append((module, name, parameter))
            module._parameters[name] = nn.Parameter(values, requires_grad=False)
    try:
        yield
    finally:
        for module, name, parameter in replaced:
            module._parameters[name] = parameter


def _build(path: Path, config: Mapping[str, Any], task: str | None) -> nn.Module:
    """Return the model as it is quantized."""
    if part_for_task(task) is not None:
        raise CaptureError(
            f"block-wise quantization loads no part of an encoder-decoder ('{task}')",
            Argument("--memory", text="raise {}"),
        )
    model = disable_cache(build_model(path, config, task))
    return DecoderWithCache(model) if task == WITH_PAST else model


def build_model(path: Path, config: Mapping[str, Any], task: str | None) -> nn.Module:
    """Build the model of a folder as its library does; weights are as initialized.

    Raises:
        CaptureError: as for `model_class`, or its package is missing.
    """
    if "architecture" in config and "model_type" not in config:
        timm = require("timm", f"the model in {path}", CaptureError)
        name, options = timm_arguments(timm, path, config)
        timm_model: nn.Module = timm.create_model(name, pretrained=False, **options)
        return timm_model
    library = require("transformers", f"the model in {path}", CaptureError)
    loader = model_class(library, path, config, task)
    hf_config = library.AutoConfig.from_pretrained(
        path, local_files_only=True, trust_remote_code=False
    )
    auto = loader.__name__.startswith("Auto")
    make = (
        partial(loader.from_config, hf_config, dtype=torch.float32)
        if auto
        else partial(loader, hf_config)
    )
    model: nn.Module = make()
    if not any("pooler" in name.split(".") for name in WeightFiles(path).tensors):
        poolers = [name for name in model.state_dict() if "pooler" in name.split(".")]
        if bare := no_pooler_options(type(model), poolers):
            model = make(**bare)
    if (kind := experts_options(config).get(EXPERTS)) and hasattr(model, f"set_{EXPERTS}"):
        getattr(model, f"set_{EXPERTS}")(kind)
    return model


def expand_meta_parameters(model: nn.Module) -> nn.Module:
    """Replace meta parameters by a single expanded zero, in place; return the model in eval mode.

    A parameter shared by several modules stays shared.
    """
    expanded: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if parameter not in expanded:
                zero = torch.zeros((), dtype=torch.float32).expand(parameter.shape)
                expanded[parameter] = nn.Parameter(zero, requires_grad=False)
            module._parameters[name] = expanded[parameter]
    return model.eval()


def stored_names(model: nn.Module, files: WeightFiles, every: bool = True) -> dict[str, str]:
    """Return parameter or persistent buffer -> its name in the files.

    A shared parameter is stored under one of its names; a part of a model may be stored with or
    without the prefix that it has in the whole model.

    Args:
        model: module without weights.
        files: its weights.
        every: the files are to hold nothing that the model does not use, as one that was built
            from their config.json; a module of the user's may be a part of it.

    Raises:
        CaptureError: a tensor is missing, or has a different shape.
    """
    prefix = f"{getattr(model, 'base_model_prefix', '') or 'model'}."
    state = model.state_dict(keep_vars=True)
    same: dict[int, list[str]] = {}
    for name, tensor in state.items():
        same.setdefault(id(tensor), []).append(name)
    names, known = {}, set[str]()
    mine = {model_name(name): name for name in (*files.stacks, *files.tensors)}
    for name, tensor in state.items():
        aliases = [name, *same[id(tensor)]]
        candidates = [c for n in aliases for c in (n, prefix + n, n.removeprefix(prefix))]
        stored = next((mine[c] for c in candidates if c in mine), None)
        if stored is None:
            raise missing_weights(files.folder, model, [name], mine)
        known.update(candidates, [stored], chain.from_iterable(files.stacks.get(stored, ())))
        shape = files.shape(stored)
        if shape != tuple(tensor.shape):
            raise CaptureError(
                f"{files.folder}: '{stored}' has the shape {list(shape)}, the model expects "
                f"{list(tensor.shape)}",
                OtherFile("give the folder of one model"),
            )
        names[name] = stored
    if every:
        check_unused_weights(model, files.tensors.keys() - known, files.folder)
    return names
