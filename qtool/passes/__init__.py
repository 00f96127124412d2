"""Passes: rewrites that keep the function of the graph, each checked against a contract."""

from qtool.passes.activations import hard_swish, hard_swish_forms, prelu_forms, unfused_clamps
from qtool.passes.canonicalize import canonicalize
from qtool.passes.conv_channels import (
    average_pool_as_conv,
    batch_norm_as_conv,
    channel_shuffle,
    merge_groups,
    pad_channels,
    unpad_channels,
)
from qtool.passes.experts import experts, routed_experts
from qtool.passes.flatten_linear import flatten_linear, keep_bias
from qtool.passes.fold_affine import fold_affine, input_affine
from qtool.passes.fold_batch_norm import fold_batch_norm
from qtool.passes.fold_constants import fold_constants, remove_identity
from qtool.passes.graph_pass import GraphPass, run_passes, same_function
from qtool.passes.grouped_queries import grouped_queries
from qtool.passes.pads import fold_pad, max_pool_pad
from qtool.passes.recurrent import recurrent, unrolled_steps
from qtool.passes.rms_norm import rms_norm, skip_rms_norm
from qtool.passes.rotary import rotary, rotary_attention
from qtool.passes.stacked_weights import packed_projections, stacked_weights
from qtool.passes.stored_operands import stored_operands

__all__ = ["CANONICAL", "FOR_FILES", "FOR_TARGETS", "GraphPass", "run_passes", "same_function"]

CANONICAL = [
    remove_identity,  # first: an identity between two layers hides their pattern
    recurrent,
    canonicalize,
    fold_constants,  # before fold_batch_norm, which needs stored weights
    unrolled_steps,  # before biases are folded, into each step's own
    hard_swish_forms,
    rms_norm,  # its weight may be 1 plus a parameter: constants first
    grouped_queries,
    fold_batch_norm,
    fold_affine,  # after the norm, which may come before a scale
    max_pool_pad,
    fold_pad,  # after the norm: a pad before the layer does not hide it
    flatten_linear,
]
"""The passes from the captured graph to the canonical float graph, in order."""

FOR_TARGETS = {
    p.name: p
    for p in (
        batch_norm_as_conv,
        average_pool_as_conv,
        channel_shuffle,
        experts,
        hard_swish,
        input_affine,
        keep_bias,
        merge_groups,
        pad_channels,
        rotary,
        stacked_weights,
        stored_operands,
        unfused_clamps,
    )
}
"""Rewrites for some runtimes only, by name; a target lists those it wants."""

FOR_FILES = {
    p.name: p
    for p in (
        hard_swish_forms,
        packed_projections,
        prelu_forms,
        rotary,
        rotary_attention,
        routed_experts,
        skip_rms_norm,
        unpad_channels,
    )
}
"""Fusions of graphs to be written, by name, float or quantized; a target's files list theirs."""
