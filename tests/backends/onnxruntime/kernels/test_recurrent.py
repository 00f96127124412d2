"""DynamicQuantizeLSTM against real sessions."""

from dataclasses import dataclass

import numpy as np
import pytest

from qtool.backends.onnxruntime.kernels.dynamic import LstmDirection
from qtool.backends.profiles import profile
from qtool.core.errors import KernelError
from qtool.core.types import INT8, UINT8, QType
from tests.backends.kernels.ort_session import MS, Model, params
from tests.backends.onnxruntime.kernels.oracle import VNNI, tensor

BIND = profile("onnxruntime-x64").bind


@dataclass(frozen=True)
class Case:
    """sizes: time, batch, in, hidden."""

    sizes: tuple[int, int, int, int]
    direction: str = "forward"
    qtype: QType = INT8
    bias: bool = True
    states: bool = False
    per_channel: bool = True
    size: float = 1.0


CASES = {
    "one sample": Case((9, 1, 24, 32)),
    "several samples, no whole vectors": Case((5, 7, 19, 37), states=True),
    "both ways": Case((6, 3, 16, 20), "bidirectional", states=True),
    "backwards": Case((6, 2, 11, 9), "reverse"),
    "one scale": Case((4, 3, 30, 8), per_channel=False, bias=False),
    "uint8": Case((4, 3, 30, 8), qtype=UINT8),
    "saturated gates": Case((8, 2, 40, 50), size=30.0),
    "one step of one": Case((1, 1, 1, 1)),
}


@VNNI
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_dynamic_lstm(case: Case) -> None:
    rng, m = np.random.default_rng(0), Model()
    time, batch, inputs, hidden = case.sizes
    count = 2 if case.direction == "bidirectional" else 1
    x = rng.standard_normal((time, batch, inputs), np.float32) * np.float32(case.size)
    kind, numbers = case.qtype.numpy_dtype, (count, *([4 * hidden] if case.per_channel else []))
    codes = [
        rng.integers(case.qtype.qmin, case.qtype.qmax + 1, (count, n, 4 * hidden)).astype(kind)
        for n in (inputs, hidden)
    ]
    scales = [rng.uniform(1e-4, 0.03, numbers).astype(np.float32) for _ in codes]
    middle = 0 if case.qtype is INT8 else 131
    zeros = np.full(numbers, middle, kind)
    bias = rng.standard_normal((count, 8 * hidden), np.float32)
    states = [rng.standard_normal((count, batch, hidden), np.float32) for _ in "hc"]

    given = [m.feed(x), *map(m.const, codes), m.const(bias) if case.bias else "", ""]
    given += [m.feed(s) for s in states] if case.states else ["", ""]
    given += ["", *(m.const(a) for s in scales for a in (s, zeros))]
    m.node("DynamicQuantizeLSTM", given, MS, hidden_size=hidden, direction=case.direction)
    m.nodes[0].output[:] = ["y", "h", "c"]

    layers = []
    for at in range(count):
        axis = 0 if case.per_channel else None
        w, r = (params(case.qtype, s[at], middle, axis) for s in scales)
        weight, recurrent = (tensor(c[at].T) for c in codes)
        backwards = case.direction == "reverse" or at == 1
        own = tensor(bias[at]) if case.bias else None
        layers.append(LstmDirection(weight, w, recurrent, r, own, backwards))
    found = BIND("dynamic_lstm", layers)(tensor(x), *map(tensor, states if case.states else []))
    for name, mine in zip(("y", "h", "c"), found, strict=True):
        want, ran = m.run(name, 1)
        assert "DynamicQuantizeLSTM" in ran
        assert mine.shape == want.shape
        assert int((mine.numpy() != want).sum()) == 0


def test_both_directions_have_one_size() -> None:
    one = params(INT8, 1.0)
    layers = [
        LstmDirection(*(tensor(np.ones((4 * n, k), np.int8)) if p is None else p
                        for k, p in ((3, None), (0, one), (n, None), (0, one))), None)
        for n in (2, 3)
    ]  # fmt: skip
    with pytest.raises(KernelError, match="the same size"):
        BIND("dynamic_lstm", layers)
