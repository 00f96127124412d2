"""Passes: rewrites that keep the function of the graph, each under a checked contract."""

from qtool.passes.average_pool_as_conv import average_pool_as_conv
from qtool.passes.batch_norm_as_conv import batch_norm_as_conv
from qtool.passes.canonicalize import canonicalize
from qtool.passes.channel_shuffle import channel_shuffle
from qtool.passes.flatten_linear import flatten_linear
from qtool.passes.fold_affine import fold_affine
from qtool.passes.fold_batch_norm import fold_batch_norm
from qtool.passes.fold_constants import fold_constants
from qtool.passes.fold_pad import fold_pad
from qtool.passes.graph_pass import GraphPass, run_passes, same_function
from qtool.passes.grouped_queries import grouped_queries
from qtool.passes.hard_swish import hard_swish
from qtool.passes.keep_bias import keep_bias
from qtool.passes.max_pool_pad import max_pool_pad
from qtool.passes.merge_groups import merge_groups
from qtool.passes.pad_channels import pad_channels
from qtool.passes.recurrent import recurrent
from qtool.passes.remove_identity import remove_identity
from qtool.passes.rms_norm import rms_norm
from qtool.passes.rotary import rotary

__all__ = ["CANONICAL", "FOR_TARGETS", "GraphPass", "run_passes", "same_function"]

CANONICAL = [
    remove_identity,  # first: an identity between two layers hides the pattern
    recurrent,
    canonicalize,
    fold_constants,  # before the norm, which is folded into stored weights alone
    rms_norm,  # whose weight may be one and a parameter
    grouped_queries,
    fold_batch_norm,
    fold_affine,  # a norm stands right behind its layer, a scale may stand behind the norm
    max_pool_pad,
    fold_pad,  # after the norm: padding before a convolution does not disturb its norm
    flatten_linear,
]
"""The passes from the captured graph to the canonical float graph, in order."""

FOR_TARGETS = {
    p.name: p
    for p in (
        batch_norm_as_conv,
        average_pool_as_conv,
        channel_shuffle,
        hard_swish,
        keep_bias,
        merge_groups,
        pad_channels,
        rotary,
    )
}
"""Rewrites that pay on some runtimes only, by name: a target lists those it wants."""
