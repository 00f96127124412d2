"""Explains an index beyond the table that an embedding selects from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.core.remedies import DataEdit

TOKENIZER = DataEdit("use the model's own tokenizer")


def index_error(model: nn.Module, example: Batch, what: str, problem: str) -> CaptureError | None:
    """Return the error of a batch with an index that no table of the model has; None for another
    problem.

    Args:
        model: the module.
        example: the batch.
        what: begin of the message.
        problem: the model's own error.
    """
    if "argument #1 'indices' to have one of the following scalar types" in problem:
        return CaptureError(
            f"{what}: the model selects rows of a table by their numbers, and these have fractions",
            DataEdit("give whole numbers, such as those of tokens or categories"),
        )
    if not problem.startswith("IndexError: index out of range"):
        return None
    table = _table(model, example)
    if table is None:
        beyond = "an index, such as a token id, is beyond the table it selects from"
        return CaptureError(f"{what}: {problem}: {beyond}", TOKENIZER)
    name, rows, chosen = table
    index = int(chosen.min()) if chosen.min() < 0 else int(chosen.max())
    where = next((n for n, t in example.tensors() if torch.equal(t, chosen)), None)
    has = f"module '{name}' has the rows 0 to {rows - 1}"
    first = chosen.reshape(-1, chosen.shape[-1])[0]
    if where is None and torch.equal(first, torch.arange(len(first))):
        return CaptureError(
            f"{what}: {has}, and the model selects row {index} by a position",
            DataEdit(f"give samples of at most {rows} steps"),
        )
    message = f"{what}: {where or 'the batch'} holds {index}, and {has}"
    if chosen.dim() > 1:
        return CaptureError(message, TOKENIZER)
    return CaptureError(
        message, DataEdit(f"number the categories from 0 to {rows - 1}, as in training")
    )


def _table(model: nn.Module, example: Batch) -> tuple[str, int, torch.Tensor] | None:
    """Return the name and the rows of the first embedding that has no row of an index, and its
    indices; None without."""
    seen: list[tuple[str, int, torch.Tensor]] = []

    def hook(name: str) -> Callable[..., None]:
        def check(module: Any, args: Any) -> None:
            indices = args[0]
            if indices.min() < 0 or indices.max() >= module.num_embeddings:
                seen.append((name, module.num_embeddings, indices))

        return check

    kinds = (nn.Embedding, nn.EmbeddingBag)
    tables = [(name, m) for name, m in model.named_modules() if isinstance(m, kinds)]
    handles = [module.register_forward_pre_hook(hook(name)) for name, module in tables]
    try:
        with torch.no_grad():
            model(*example.args, **example.kwargs)
    except (Exception, SystemExit):  # noqa: BLE001  # the user's code may raise anything
        return next(iter(seen), None)
    finally:
        for handle in handles:
            handle.remove()
    return None
