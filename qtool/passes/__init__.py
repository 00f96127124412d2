"""Passes: rewrites that keep the function of the graph, each under a checked contract."""

from qtool.passes.canonicalize import canonicalize
from qtool.passes.flatten_linear import flatten_linear
from qtool.passes.fold_batch_norm import fold_batch_norm
from qtool.passes.fold_pad import fold_pad
from qtool.passes.infra import GraphPass, run_passes, same_function
from qtool.passes.remove_identity import remove_identity

__all__ = ["CANONICAL", "GraphPass", "run_passes", "same_function"]

CANONICAL = (
    remove_identity,  # first: an identity between two layers hides the pattern
    canonicalize,
    fold_batch_norm,
    fold_pad,  # after the norm: padding before a convolution does not disturb its norm
    flatten_linear,
)
"""The passes from the captured graph to the canonical float graph, in order."""
