"""LSTM, GRU and RNN of ONNX files, in the forms whose weights can be quantized."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from qtool.core.ops import recurrent as cells
from qtool.frontends.onnx.node_calls import NodeCall

ATTRIBUTES = (
    "activation_alpha activation_beta activations clip direction hidden_size input_forget layout "
    "linear_before_reset"
)
"""Of all three operators; values that have no quantized form are refused with a reason."""
INPUTS = 8
_LENGTHS = 4  # position of sequence_lens
_ACTIVATIONS = {"lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"], "rnn": ["Tanh"]}


_REMEDIES = {
    "sequence_lens": "export it without, and read the last step of each sequence outside",
    "peepholes": "train it without, as torch's and Keras's LSTM are",
    "linear_before_reset = 0": "torch's GRU, and Keras's with reset_after=True, has 1",
}
"""What to do about a form in float."""


def recurrent(kind: str) -> Callable[..., Any]:
    """Return the function of "lstm", "gru" or "rnn".

    A reversed layer is a forward one on the reversed sequence. Sequence lengths that are all the
    whole length count as none.
    """

    def apply(call: NodeCall, x: Any, w: Any, r: Any, b: Any = None, *rest: Any) -> Any:
        lengths, h, c, peepholes = (*rest, None, None, None, None)[:4]
        names = [n.decode() for n in call.get("activations", [])] or _ACTIVATIONS[kind] * len(w)
        partial_lengths = lengths is not None and not _all_whole(call, x.shape[0])
        forms = _forms_in_float(kind, call, names, partial_lengths, peepholes is not None)
        if (form := next(forms, None)) is not None:
            remedy = f"; {_REMEDIES[form]}" if form in _REMEDIES else ""
            raise call.unsupported(f"qtool quantizes no {kind.upper()} with {form}{remedy}")
        backwards = call.get("direction", "forward") == "reverse"
        x = x.flip(0) if backwards else x
        b = w.new_zeros(len(w), 2 * w.shape[1]) if b is None else b
        if kind == "lstm":
            y, *last = cells.lstm(x, w, r, b, h, c)
        elif kind == "gru":
            y, *last = cells.gru(x, w, r, b, h)
        else:
            y, *last = cells.rnn(x, w, r, b, h, names[0].lower())
        return (y.flip(0) if backwards else y, *last)

    return apply


def _all_whole(call: NodeCall, steps: int | torch.SymInt) -> bool:
    """Return whether the lengths are a constant that is the length of the sequence."""
    lengths = call.constants.get(_LENGTHS)
    return lengths is not None and isinstance(steps, int) and bool((lengths == steps).all())


def _forms_in_float(
    kind: str, call: NodeCall, names: list[str], lengths: bool, peepholes: bool
) -> Iterator[str]:
    """Yield what a layer has and no quantized kernel computes."""
    usual = [_ACTIVATIONS[kind], *([["Relu"]] if kind == "rnn" else [])]
    if lengths:
        yield "sequence_lens"
    if peepholes:
        yield "peepholes"
    if [n.title() for n in names] not in [
        each * directions for each in usual for directions in (1, 2)
    ]:
        yield f"the activations {', '.join(names)}"
    for name in ("input_forget", "layout"):
        if call.get(name, 0):
            yield f"{name} = {call.get(name)}"
    if call.get("clip") is not None:
        yield "clip"
    if kind == "gru" and not call.get("linear_before_reset", 0):
        yield "linear_before_reset = 0"
