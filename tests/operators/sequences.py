"""Operators on sequences: products, attention, norms, recurrent layers; and inputs and outputs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.operators.case import Case, tokens, whole

NONE = "no integer kernel on onnxruntime"
PRODUCT = "a product of two activations is not faster in integers"
STORED = "no integer kernel for it in QDQ files: int8 weights"
FLOAT_IN = "its inputs are float"
SMALL = "its table is too small to gain from codes"
TOKENS = (4, 6, 8)


def attended(**options: Any) -> Any:
    def body(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (x.unflatten(-1, (2, 4)).transpose(1, 2) for _ in range(3))
        found = F.scaled_dot_product_attention(query, key, value, **options)
        return found.transpose(1, 2).flatten(2)

    return body


ATTENTION = "FusedMatMul Softmax MatMul"
SEQUENCES: Mapping[str, Case] = {
    "matmul": tokens(lambda m, x: x @ x.mT @ x, "FusedMatMul MatMul", {"matmul": PRODUCT}),
    "bmm": tokens(
        lambda m, x: torch.bmm(torch.bmm(x, x.mT), x), "FusedMatMul MatMul", {"matmul": PRODUCT}
    ),
    "baddbmm": tokens(
        lambda m, x: torch.baddbmm(x, torch.bmm(x, x.mT), x, alpha=0.5),
        "FusedMatMul FusedMatMul Add",
        {"matmul": PRODUCT},
    ),
    "einsum": tokens(
        lambda m, x: (
            torch.einsum("bij,bj->bi", torch.einsum("btc,bsc->bts", x, x), x[..., 0]).unsqueeze(2)
            * x
        ),
        "Einsum Einsum Gather Mul",
        {"einsum": PRODUCT, "mul": FLOAT_IN},
    ),
    "attention": tokens(attended(), ATTENTION, {"attention": PRODUCT}),
    "attention_causal": tokens(
        attended(is_causal=True),
        "FusedMatMul Expand Trilu Equal Where Add Softmax MatMul",
        {"attention": PRODUCT},
    ),
    "attention_mask": tokens(
        attended(attn_mask=torch.zeros(6, 6) - 0.5),
        "FusedMatMul Add Softmax MatMul Where",  # zeros where a query sees nothing
        {"attention": PRODUCT},
    ),
    "multihead": tokens(
        lambda m, x: m.a(x, x, x)[0],
        "QGemm QGemm Split FusedMatMul Softmax FusedMatMul",
        {"matmul": PRODUCT, "mul": "one operand is a scalar", "softmax": "slower than the float"},
        a=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    ),
    "layer_norm_tokens": tokens(
        lambda m, x: m.norm(x),
        "LayerNormalization",
        {"layer_norm.default": NONE},
        norm=lambda: nn.LayerNorm(8),
    ),
    "rms_norm": tokens(
        lambda m, x: m.norm(x),
        "SimplifiedLayerNormalization",
        {"rms_norm.default": NONE},
        norm=lambda: nn.RMSNorm(8),
    ),
    "positions": tokens(
        lambda m, x: x + m.table(torch.arange(x.size(1))),
        "Add",
        {"embedding": SMALL, "add": FLOAT_IN},
        table=lambda: nn.Embedding(6, 8),
    ),
    "lstm": tokens(
        lambda m, x: m.rnn(x)[0],
        "LSTM LSTM",
        {"lstm": STORED},
        32,
        rnn=lambda: nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True),
    ),
    "lstm_states": tokens(
        lambda m, x: m.rnn(
            x.transpose(0, 1), (x[:, :1].transpose(0, 1).relu(), x[:, 1:2].transpose(0, 1))
        )[1][1].transpose(0, 1),
        "LSTM Relu",
        {"lstm": STORED, "relu": "its input is float"},
        rnn=lambda: nn.LSTM(8, 8, bias=False),
    ),
    "gru": tokens(
        lambda m, x: m.rnn(x)[1][-1],
        "GRU GRU Concat Gather",
        {"gru": STORED, "concat": FLOAT_IN},
        rnn=lambda: nn.GRU(8, 8, 2, batch_first=True),
    ),
    "rnn": tokens(
        lambda m, x: m.rnn(x)[0],
        "RNN",
        {"rnn": STORED},
        rnn=lambda: nn.RNN(8, 8, batch_first=True, nonlinearity="relu"),
    ),
    "embedding": whole(
        lambda m, x: m.head(m.table(x)),
        "Gather QGemm",
        (4, 6),
        floats={"embedding": SMALL},
        indices=True,
        table=lambda: nn.Embedding(10, 8),
        head=lambda: nn.Linear(8, 3),
    ),
    "mask": whole(
        lambda m, x: m.head(m.first(x)[x[:, 0] > 0]),
        "QGemm Gather Greater Expand Max GatherND NonZero QGemm",
        (4, 8),
        floats={"index.Tensor": NONE},
        first=lambda: nn.Linear(8, 8),
        head=lambda: nn.Linear(8, 3),
    ),
    "nonzero": whole(
        lambda m, x: m.head(x)[x[:, 0].nonzero()[:, 0]],
        "QGemm Gather Gather Gather NonZero",
        (4, 8),
        floats={},
        head=lambda: nn.Linear(8, 3),
    ),
    "two_inputs": whole(
        lambda m, a, b: m.left(a) * m.right(b).sigmoid(),
        "QGemm QGemm Sigmoid Mul",
        (4, 6),
        (4, 3),
        floats={"sigmoid": FLOAT_IN, "mul": FLOAT_IN},
        left=lambda: nn.Linear(6, 5),
        right=lambda: nn.Linear(3, 5),
    ),
}
