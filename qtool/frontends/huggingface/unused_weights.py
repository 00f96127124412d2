"""Weights of a folder that its model does not use.

A head of another task is left out on purpose. Layers behind the last one of a short configuration,
and scales of weights, belong to what the model computes: without them it is another model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from qtool.core.argument_names import argument
from qtool.core.errors import CaptureError
from qtool.core.log import log_note
from qtool.core.summary import group_names

_LISTS = (nn.ModuleList, nn.Sequential)


def check_unused_weights(model: nn.Module, unused: Iterable[str], folder: Path) -> None:
    """Refuse weights that belong to the layers of a model, and log a note on others.

    Args:
        model: the model.
        unused: names of tensors in the folder that it has no parameter or buffer for.
        folder: folder of the model.

    Raises:
        CaptureError: layers of the model, or parameters of one of its layers, are not used.
    """
    ignored = [re.compile(p) for p in getattr(model, _IGNORED, None) or ()]
    names = [n for n in sorted(unused) if not any(p.search(n) for p in ignored)]
    modules = dict(model.named_modules())
    prefix = f"{getattr(model, 'base_model_prefix', '') or 'model'}."
    for name in names:
        for place in (name, prefix + name, name.removeprefix(prefix)):
            if reason := _lost(modules, place):
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise CaptureError(
                    f"{folder} holds '{name}'{more}, which {type(model).__name__} does not use: "
                    f"{reason}"
                )
    heads = dict.fromkeys(n.rpartition(".")[0] or n for n in names if not _is_buffer(n))
    if heads:
        log_note(
            f"{folder} holds weights that {type(model).__name__} does not use, such as heads of "
            f"other tasks ({group_names(list(heads))}); {argument('--task')} chooses another one"
        )


_IGNORED = "_keys_to_ignore_on_load_unexpected"
"""Attribute of models of transformers: patterns of names that are no weights of theirs."""

_BUFFERS = ("position_ids", "inv_freq", "masked_bias", "num_batches_tracked")
"""Constants that older versions of transformers stored."""


def _is_buffer(name: str) -> bool:
    return name.rpartition(".")[2] in _BUFFERS


def _lost(modules: dict[str, nn.Module], name: str) -> str:
    """Return why a tensor belongs to the layers of a model; empty if it does not."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        owner, child = modules.get(".".join(parts[:end])), parts[end]
        if isinstance(owner, _LISTS) and child.isdigit() and int(child) >= len(owner):
            return (
                f"config.json describes {len(owner)} layers in '{'.'.join(parts[:end])}'; correct "
                "it, or give the weights of that model"
            )
        if owner is None or end != len(parts) - 1 or _is_buffer(name):
            continue
        own = [n for n, _ in owner.named_parameters(recurse=False)]
        if any(n == "weight" or child.startswith(f"{n}_") for n in own):
            return (
                f"it belongs to the layer '{'.'.join(parts[:end])}', whose result would be "
                "another one; config.json lacks an entry for it, such as quantization_config"
            )
    return ""
