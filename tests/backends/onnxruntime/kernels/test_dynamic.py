"""Products of inputs whose range is found as the model runs, against real sessions."""

import numpy as np
import pytest

from qtool.core.types import INT8, UINT8, QType
from tests.backends.kernels.ort_session import Model, params
from tests.backends.onnxruntime.kernels.oracle import BIND, Draw, tensor

VALUES = {
    "both signs": np.linspace(-1.7, 3.1, 4096),
    "ties": np.arange(-255, 256) / 2,
    "above zero": np.linspace(0.5, 2, 301),
    "below zero": np.linspace(-3, -1, 301),
    "zeros": np.zeros(7),
    "nothing": np.zeros((0, 3)),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_dynamic_quantize(values: np.ndarray) -> None:
    x = values.astype(np.float32)
    found = BIND("dynamic_quantize")(tensor(x))
    for index, mine in enumerate(found):
        m = Model()
        node = m.node("DynamicQuantizeLinear", [m.feed(x)])
        m.nodes[0].output[:] = [node, "scale", "zero"]
        want, _ = m.run([node, "scale", "zero"][index], 1 if index == 1 else 2)
        assert mine.numpy().dtype == want.dtype
        assert np.array_equal(mine.numpy(), want)


@pytest.mark.parametrize("inputs", [24, 1200])
@pytest.mark.parametrize("zeros", ["", "x", "x, w"])
@pytest.mark.parametrize("qtype", [INT8, UINT8], ids=str)
def test_matmul_integer(qtype: QType, zeros: str, inputs: int) -> None:
    d, m = Draw(3), Model()
    x, w = d.codes(UINT8, 4, 3, inputs), d.codes(qtype, inputs, 9)
    w[:, 0] = qtype.qmax  # sums that leave 16 bits, and what float32 holds
    x_zero, w_zero = np.uint8(131), d.codes(qtype, 9) if "w" in zeros else None
    given = [m.feed(x), m.const(w)]
    given += [m.const(x_zero)] if zeros else []
    given += [] if w_zero is None else [m.const(w_zero)]
    want, _ = m.run(m.node("MatMulInteger", given), 6)
    weight = params(qtype, np.ones(9), np.zeros(9) if w_zero is None else w_zero, axis=0)
    bound = BIND("matmul_integer", weight, tensor(w.T))
    found = bound(tensor(x), *([tensor(x_zero)] if zeros else []))
    assert found.numpy().dtype == want.dtype
    assert np.array_equal(found.numpy(), want)
