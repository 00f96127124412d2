"""The cross-entropy of next tokens, by which steps for causal language models are judged.

Rounding that keeps a network's logits nearer is not always the better language model: what texts
say next is. The difference of two networks is taken text by text, so that it is known far more
exactly than either loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import FloatGraph

IDS, LOGITS = "input_ids", "logits"
FEWEST_TEXTS = 8
STANDARD_ERRORS = 2  # a mean difference further from zero than this is conclusive
_SAME = 1e-4  # relative difference of logits up to which a later token has no influence


@dataclass(frozen=True)
class NextTokens:
    """Where a causal language model has its tokens.

    Attributes:
        ids: index of the token ids [samples, tokens] among the inputs.
        logits: index of the logits [samples, tokens, vocabulary] among the float outputs.
    """

    ids: int
    logits: int

    def losses(
        self, graph: FloatGraph, batch: Batch, outputs: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Return the mean loss of the next tokens of each sample in nats, float64 [samples].

        Args:
            graph: takes the batch.
            batch: samples without padding.
            outputs: its float outputs.
        """
        ids, logits = graph.tensors_of(batch)[self.ids], outputs[self.logits]
        targets = ids[:, 1:].long()
        each = [
            nn.functional.cross_entropy(row[:-1].float(), target)
            for row, target in zip(logits, targets, strict=True)
        ]
        return torch.stack(each).double().cpu()


def find_next_tokens(graph: FloatGraph, batch: Batch) -> NextTokens | None:
    """Return where a graph has its tokens, None if it is no causal language model.

    It is one if the logits of a token do not depend on later ones.
    """
    inputs = [each.name for each in graph.inputs]
    nodes = zip(graph.outputs, G.output_nodes(graph.graph), strict=True)
    outputs = [(name, G.rank(node)) for name, node in nodes if G.is_float(node)]
    scores = [i for i, (name, rank) in enumerate(outputs) if LOGITS in name and rank == 3]
    if IDS not in inputs or len(scores) != 1:
        return None
    tokens, tensors = NextTokens(inputs.index(IDS), scores[0]), graph.tensors_of(batch)
    ids = tensors[tokens.ids]
    if ids.dim() != 2 or ids.shape[1] < 3 or ids.is_floating_point():
        return None
    other = ids.clone()
    other[:, -1] = torch.where(ids[:, -1] == ids[:, 0], ids[:, 1], ids[:, 0])
    changed = graph.call_of([other if i == tokens.ids else t for i, t in enumerate(tensors)])
    with torch.no_grad():
        every = [float_outputs(graph.module, each) for each in (batch, changed)]
    one, two = (each[tokens.logits][:, :-1] for each in every)
    far = (one - two).abs().max() > _SAME * one.abs().max()
    return None if bool(far) or one.shape[:2] != ids[:, :-1].shape else tokens


def conclusive_change(before: torch.Tensor, after: torch.Tensor) -> float | None:
    """Return the mean difference of the losses of texts, after less before; None if it may be
    chance."""
    change = after - before
    if len(change) < FEWEST_TEXTS:
        return None
    error = float(change.std()) / len(change) ** 0.5
    mean = float(change.mean())
    return mean if abs(mean) > STANDARD_ERRORS * error else None


def float_outputs(module: nn.Module, batch: Batch) -> list[torch.Tensor]:
    """Return the floating-point outputs of a module."""
    leaves = pytree.tree_leaves(module(*batch.args, **batch.kwargs))
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]
