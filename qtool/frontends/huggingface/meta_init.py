"""Models of a folder without their weights: all but large tensors, which nobody has filled.

Layers make their weights by `torch.empty`. What is large of that is made on the meta device, and
then becomes a tensor whose elements are all one: torch traces it like any other. Small tensors are
real, since a model may make tables of its configuration (rotary frequencies) that no file holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qtool.core.errors import CaptureError, QtoolError
from qtool.core.graph.process_lock import silence_logging
from qtool.frontends.huggingface.encoder_decoder import part_for_task
from qtool.frontends.huggingface.model_folder import (
    WITH_PAST,
    disable_cache,
    model_class,
    no_pooler_options,
    read_config,
    timm_arguments,
)
from qtool.frontends.huggingface.safetensors_files import WeightFiles
from qtool.frontends.optional_packages import require
from qtool.frontends.torch.exported_program import first_line

MIN_META_ELEMENTS = 1 << 16  # elements
STACKED_EXPERTS = (
    "the files hold experts one by one, and the model has them stacked: it does not go block by "
    "block; use qtool convert, which loads the whole of it"
)


class without_weights(TorchFunctionMode):  # noqa: N801  # used as a function: with qtool.without_weights(): ...
    """A context in which large layers are made without memory for their weights: a model of any
    size, for `quantize_by_blocks`.

    Raises:
        nothing of its own.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is torch.empty and prod(_sizes(args, options)) > MIN_META_ELEMENTS:
            options["device"] = "meta"
        return func(*args, **options)


def _sizes(args: Any, options: Mapping[str, Any]) -> list[int]:
    given = args or options.get("size", ())
    nested = len(given) == 1 and isinstance(given[0], list | tuple)
    return [int(size) for size in (given[0] if nested else given)]


def load_without_weights(path: Path, task: str | None = None) -> nn.Module:
    """The model of a folder of transformers or timm in eval mode, with weights that hold no values
    and take no memory.

    Raises:
        CaptureError: it cannot be made; its package is missing.
    """
    config = read_config(path)
    try:
        with silence_logging(), without_weights():
            model = _build(path, config, task)
    except QtoolError:
        raise
    except (Exception, SystemExit) as error:
        raise CaptureError(f"{path} cannot be loaded: {first_line(error)}") from error
    return expand_meta_parameters(model)


def _build(path: Path, config: Mapping[str, Any], task: str | None) -> nn.Module:
    if "architecture" in config and "model_type" not in config:
        timm = require("timm", f"the model in {path}", CaptureError)
        name, given = timm_arguments(timm, path, config)
        made: nn.Module = timm.create_model(name, pretrained=False, **given)
        return made
    library = require("transformers", f"the model in {path}", CaptureError)
    if part_for_task(task) is not None:
        raise CaptureError(f"no half of a model is loaded without its weights: leave out '{task}'")
    if task == WITH_PAST:
        raise CaptureError(f"no cache goes with a model in blocks: leave out '{task}'")
    loader = model_class(library, path, config, task)
    known = library.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    auto = loader.__name__.startswith("Auto")
    make = (
        partial(loader.from_config, known, dtype=torch.float32) if auto else partial(loader, known)
    )
    built: nn.Module = make()
    if not any("pooler" in name.split(".") for name in WeightFiles(path).tensors):
        poolers = [name for name in built.state_dict() if "pooler" in name.split(".")]
        if bare := no_pooler_options(type(built), poolers):
            built = make(**bare)
    return disable_cache(built)


def expand_meta_parameters(model: nn.Module) -> nn.Module:
    """The model in eval mode. Parameters without memory become ones of a single element that is
    read for all, in place; one that has several places keeps them."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if parameter not in made:
                one = torch.zeros((), dtype=torch.float32).expand(parameter.shape)
                made[parameter] = nn.Parameter(one, requires_grad=False)
            module._parameters[name] = made[parameter]
    return model.eval()


def stored_names(model: nn.Module, shards: WeightFiles) -> dict[str, str]:
    """Parameter, and buffer that is saved -> its name in the files.

    A parameter with several names is there under one of them; a part of a model may have been saved
    without the prefix that it has in the whole, or with it.

    Raises:
        CaptureError: one is not there, or of another shape.
    """
    prefix = f"{getattr(model, 'base_model_prefix', '') or 'model'}."
    state = model.state_dict(keep_vars=True)
    same: dict[int, list[str]] = {}
    for name, tensor in state.items():
        same.setdefault(id(tensor), []).append(name)
    found = {}
    for name, tensor in state.items():
        asked = [name, *same[id(tensor)]]
        spelled = [s for n in asked for s in (n, prefix + n, n.removeprefix(prefix))]
        known = next((s for s in spelled if s in shards.tensors), None)
        if known is None:
            stacked = any("experts" in n.split(".") for n in state)
            raise CaptureError(
                f"{shards.folder} has no weights for {type(model).__name__} (missing: {name}); "
                + (STACKED_EXPERTS if stacked else "choose the --task that it was trained for")
            )
        shape = shards.tensors[known].shape
        if shape != tuple(tensor.shape):
            raise CaptureError(
                f"{shards.tensors[known].file}: '{known}' has the shape {list(shape)}, and "
                f"the model makes it {list(tensor.shape)}; one of them is of another model"
            )
        found[name] = known
    return found
