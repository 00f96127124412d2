"""Products with weights in blocks, and rows looked up in them, against real sessions."""

import numpy as np
import pytest
import torch

from qtool.backends.kernels import fma
from qtool.backends.onnxruntime.kernels import nbits
from qtool.backends.profiles import profile
from qtool.core.errors import KernelError
from qtool.core.packed_codes import pack
from qtool.core.schemes import KERNEL_BLOCKS
from tests.backends.kernels.ort_session import MS, Model
from tests.backends.onnxruntime.kernels.oracle import VNNI, assert_same, tensor

BIND = profile("onnxruntime-x64").bind

SIZES = {  # rows, inputs, outputs
    "one row, whole steps": (1, 512, 16),
    "a row left over, outputs left over": (5, 700, 37),
    "an input left over": (4, 261, 1),
    "many of both": (131, 256, 130),
    "no row": (0, 256, 5),
}


def drawn(bits: int, block: int, outputs: int, inputs: int) -> tuple[np.ndarray, ...]:
    """Codes [out, blocks, block], scales and zero points."""
    rng = np.random.default_rng(bits * block + inputs)
    shape = (outputs, -(-inputs // block))
    codes = rng.integers(0, 2**bits, (*shape, block)).astype(np.uint8)
    scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    return codes, scale, rng.integers(0, 2**bits, shape).astype(np.uint8)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    return pack(tensor(codes), bits).numpy()


FORMS = [(bits, block) for bits, blocks in KERNEL_BLOCKS.items() for block in blocks]


@VNNI
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize(
    ("bits", "block"), [(b, n) for b in KERNEL_BLOCKS for n in KERNEL_BLOCKS[b]]
)
def test_matmul_nbits(bits: int, block: int, sizes: tuple[int, int, int]) -> None:
    rows, inputs, outputs = sizes
    codes, scale, zero = drawn(bits, block, outputs, inputs)
    rng = np.random.default_rng(0)
    bias = rng.standard_normal(outputs, np.float32) if rows > 1 else None
    x = rng.standard_normal((rows, inputs), np.float32) * rng.choice([1e-3, 1, 100], (rows, inputs))
    x[-1:] = np.abs(x[-1:]) if rows == 1 else 0
    m, x = Model(), x.astype(np.float32)
    given = [m.feed(x), m.const(packed(codes, bits)), m.const(scale)]
    given += [m.const(packed(zero, bits)), "", *([] if bias is None else [m.const(bias)])]
    attributes = {"K": inputs, "N": outputs, "bits": bits, "block_size": block}
    made = m.node("MatMulNBits", given, MS, **attributes, accuracy_level=4)
    more = None if bias is None else tensor(bias)
    bound = BIND("matmul_nbits", tensor(codes), tensor(scale), tensor(zero), inputs, bits, more)
    assert_same(bound(tensor(x)), m.run(made, 1), "MatMulNBits")


def test_rows_run_in_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, scale, zero = map(tensor, drawn(4, 64, 21, 300))
    x = torch.randn(3, 7, 300, generator=torch.Generator().manual_seed(0))
    whole = BIND("matmul_nbits", codes, scale, zero, 300, 4, None)(x)
    monkeypatch.setattr(nbits, "_AT_ONCE", 1)
    assert torch.equal(BIND("matmul_nbits", codes, scale, zero, 300, 4, None)(x), whole)
    assert whole.shape == (3, 7, 21)


def test_a_torch_that_rounds_twice_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, scale, zero = map(tensor, drawn(4, 32, 21, 300))
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    bound = BIND("matmul_nbits", codes, scale, zero, 300, 4, None)
    quick = bound(x)
    monkeypatch.setattr(nbits, "multiply_add", fma.fma32)
    assert torch.equal(bound(x), quick)


def test_other_blocks_have_no_kernel() -> None:
    codes, scale, zero = (torch.ones(2, 2, 48), torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(KernelError, match="4-bit weights in blocks of 48 have no integer kernel"):
        BIND("matmul_nbits", codes, scale, zero, 96, 4, None)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gather_nbits(bits: int, axis: int, zeros: bool) -> None:
    codes, scale, zero = drawn(bits, 32, 6, 96)
    m, ids = Model(), np.array([[0, 5, -1], [-6, 2, 2]])
    data, of_each = packed(codes, bits), [scale, packed(zero, bits)]
    if axis == 2:  # each block by itself
        of_each = [scale[..., None], zero[..., None]]
    else:
        data = data.reshape(6, -1)
    of_each = of_each[: 1 + zeros]
    given = [m.const(data), m.feed(ids), *map(m.const, of_each)]
    attributes = {"bits": bits, "block_size": 32, "gather_axis": 0, "quantize_axis": axis}
    made = m.node("GatherBlockQuantized", given, MS, **attributes)
    bound = BIND("gather_nbits", tensor(data), bits, 32)
    found = bound(tensor(ids), *map(tensor, of_each))
    assert_same(found, m.run(made, 1), "GatherBlockQuantized")
