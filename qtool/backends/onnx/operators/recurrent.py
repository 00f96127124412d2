"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qtool.backends.onnx.operators.schemas import Writer, onnx_operator, op
from qtool.core.ops.recurrent import dynamic_lstm, gru, lstm, rnn


def _layer(op_type: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    def write(x: Any, w: Any, r: Any, b: Any, *states: Any, **options: Any) -> Any:
        direction = "bidirectional" if w.shape[0] == 2 else "forward"
        size = int(r.shape[2])
        return op_type(x, w, r, b, None, *states, hidden_size=size, direction=direction, **fixed)

    return write


def _write_lstm(x: Any, w: Any, r: Any, b: Any, h: Any = None, c: Any = None) -> Any:
    return _layer(op.LSTM)(x, w, r, b, h, c)


def _write_gru(x: Any, w: Any, r: Any, b: Any, h: Any = None) -> Any:
    return _layer(op.GRU, linear_before_reset=1)(x, w, r, b, h)


def _write_rnn(x: Any, w: Any, r: Any, b: Any, h: Any, function: str) -> Any:
    names = [function.capitalize()] * int(w.shape[0])
    return _layer(op.RNN, activations=names)(x, w, r, b, h)


def _write_dynamic_lstm(
    x: Any,
    w: Any,
    w_scale: Any,
    w_zero: Any,
    r: Any,
    r_scale: Any,
    r_zero: Any,
    b: Any,
    h: Any = None,
    c: Any = None,
) -> Any:
    write = onnx_operator("DynamicQuantizeLSTM", _DYNAMIC_INPUTS, _DYNAMIC_ATTRIBUTES, 3)
    direction = "bidirectional" if w.shape[0] == 2 else "forward"
    scales = (w_scale, w_zero, r_scale, r_zero)
    size = int(r.shape[1])
    return write(*(x, w, r, b, None, h, c, None, *scales), hidden_size=size, direction=direction)


_DYNAMIC_INPUTS = (
    *("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    *("W_scale", "W_zero_point", "R_scale", "R_zero_point"),
)


_DYNAMIC_ATTRIBUTES = (("hidden_size", "INT"), ("direction", "STRING"))


CONTRIB: dict[Any, Writer] = {dynamic_lstm: _write_dynamic_lstm}


WRITERS: dict[Any, Writer] = {lstm: _write_lstm, gru: _write_gru, rnn: _write_rnn}
