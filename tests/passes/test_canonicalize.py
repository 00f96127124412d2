"""One form for each operation, whatever way it was written."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.frontends.torch.export_module import capture_module
from qtool.passes import run_passes
from qtool.passes.canonicalize import canonicalize
from qtool.passes.fold_constants import remove_identity
from tests.named_cases import cases, named_cases
from tests.passes.differential import Function, assert_same, rewritten

IMAGE = (2, 4, 8, 8)
GLOBAL = "global_average_pool"
SQUEEZED = "global_average_pool squeeze"


def of(function: Callable[..., object], *parts: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Function(function, *parts)


@named_cases(
    "conv, pads",
    ("conv1d", nn.Conv1d(4, 4, 3), [0, 0]),
    ("conv2d", nn.Conv2d(4, 4, 3, padding=(1, 2)), [1, 2, 1, 2]),
    ("conv3d", nn.Conv3d(4, 4, 2, stride=2), [0] * 6),
    ("valid", nn.Conv2d(4, 4, 3, padding="valid"), [0, 0, 0, 0]),
    ("same", nn.Conv2d(4, 4, 3, padding="same"), [1, 1, 1, 1]),
    ("same, even", nn.Conv2d(4, 4, (4, 2), padding="same"), [1, 0, 2, 1]),
    ("same, even, dilated", nn.Conv1d(4, 4, 4, padding="same", dilation=3), [4, 5]),
    ("depthwise", nn.Conv2d(4, 8, 3, groups=4, bias=False), [0] * 4),
)
def test_convolutions(conv: nn.Module, pads: list[int]) -> None:
    shape = (2, 4, *[8] * (len(pads) // 2))
    result = rewritten(conv, shape, passes=[canonicalize])
    assert result.counts == {"canonicalize": 1}
    assert result.ops() == ["conv"]
    assert list(G.output_nodes(result.graph.graph)[0].args[4]) == pads


CUT = torch.tensor([[[[0, 2, 1, 7, 7]]]]).expand(1, 4, 3, 5)


@named_cases(
    "function, ops",
    ("circular", lambda x: F.pad(x, (2, 1, 0, 3), mode="circular"), "slice slice cat slice cat"),
    (
        "scatter_add of more",
        lambda x: x.scatter_add(3, CUT, 2 * x),
        "mul slice slice slice scatter_add",
    ),
    ("scatter", lambda x: x.scatter(2, CUT, -x), "neg slice slice slice scatter"),
    ("median", lambda x: x.median(-1).values, "topk getitem slice squeeze"),
    ("kthvalue", lambda x: x.kthvalue(3, 1, keepdim=True)[0], "topk getitem slice"),
)
def test_values_by_place_and_rank(function: Callable[..., object], ops: str) -> None:
    result = rewritten(Function(function), IMAGE, passes=[canonicalize])
    assert [op for op in result.ops() if op != "index"] == ops.split()


@named_cases(
    "model, bounds",
    ("ReLU6", nn.ReLU6, (0.0, 6.0)),
    ("relu6", of(F.relu6), (0.0, 6.0)),
    ("hardtanh in place", of(lambda x: F.hardtanh_(x, 0.0, 6.0)), (0.0, 6.0)),
    ("Hardtanh", nn.Hardtanh, (-1.0, 1.0)),
    ("Hardtanh as ReLU6", lambda: nn.Hardtanh(0.0, 6.0), (0.0, 6.0)),
    ("clamp", of(lambda x: x.clamp(-0.5, 0.25)), (-0.5, 0.25)),
    ("clamp from", of(lambda x: x.clamp(min=0)), (0, None)),
    ("clamp_min", of(lambda x: x.clamp_min(0.0)), (0.0, None)),
    ("clip to", of(lambda x: torch.clip(x, max=1.0)), (None, 1.0)),
    ("clamp in place", of(lambda x: x.clamp_(0, 1)), (0, 1)),
    ("clamp_max", of(lambda x: x.clamp_max(1.0)), (None, 1.0)),
)
def test_clamps(model: Callable[[], nn.Module], bounds: tuple[float | None, ...]) -> None:
    result = rewritten(model(), IMAGE, passes=[canonicalize])
    assert result.ops() == ["clamp"]
    (clamp,) = G.output_nodes(result.graph.graph)
    assert (G.argument(clamp, 1, "min"), G.argument(clamp, 2, "max")) == bounds


@named_cases(
    "model, shape, ops",
    ("adaptive", lambda: nn.AdaptiveAvgPool2d(1), IMAGE, GLOBAL),
    ("adaptive, pair", lambda: nn.AdaptiveAvgPool2d((1, 1)), IMAGE, GLOBAL),
    ("adaptive 1d", lambda: nn.AdaptiveAvgPool1d(1), (2, 4, 8), GLOBAL),
    ("adaptive 3d", lambda: nn.AdaptiveAvgPool3d(1), (2, 4, 3, 3, 3), GLOBAL),
    ("mean, kept", of(lambda x: x.mean((2, 3), keepdim=True)), IMAGE, GLOBAL),
    ("mean, from behind", of(lambda x: x.mean([-1, -2], True)), IMAGE, GLOBAL),
    ("mean, dropped", of(lambda x: x.mean((2, 3))), IMAGE, SQUEEZED),
    ("mean over a volume", of(lambda x: x.mean((2, 3, 4))), (2, 4, 3, 3, 3), SQUEEZED),
    ("one window", lambda: nn.AvgPool2d(8), IMAGE, GLOBAL),
    ("one window 1d", lambda: nn.AvgPool1d(8), (2, 4, 8), GLOBAL),
    ("one window 3d", lambda: nn.AvgPool3d(3), (2, 4, 3, 3, 3), GLOBAL),
    ("one window, cut", lambda: nn.AvgPool2d((8, 5)), IMAGE, "slice global_average_pool"),
    (
        "one window, larger than the image",
        lambda: nn.AvgPool2d(10, ceil_mode=True),
        IMAGE,
        "slice slice global_average_pool",
    ),
    ("2 x 2", lambda: nn.AdaptiveAvgPool2d(2), IMAGE, "average_pool"),
    ("unequal windows", lambda: nn.AdaptiveAvgPool2d(3), IMAGE, "adaptive_avg_pool2d"),
    ("many windows", lambda: nn.AvgPool2d(2), IMAGE, "average_pool"),
    ("padded", lambda: nn.AvgPool2d(10, padding=1), IMAGE, "average_pool"),
    (
        "other divisor",
        lambda: nn.AvgPool2d(8, divisor_override=3),
        IMAGE,
        "global_average_pool mul",
    ),
    (
        "other divisor, padded",
        lambda: nn.AvgPool2d(3, 2, divisor_override=3, padding=1, count_include_pad=False),
        IMAGE,
        "average_pool mul",
    ),
    ("hanging over", lambda: nn.AvgPool2d(3, 3, ceil_mode=True), IMAGE, "average_pool"),
    (
        "hanging over padding",
        lambda: nn.AvgPool2d(3, 2, padding=1, ceil_mode=True),
        IMAGE,
        "constant_pad_nd average_pool",
    ),
    (
        "a window that would begin in the padding",
        lambda: nn.AvgPool2d(4, 5, padding=2, ceil_mode=True),
        (2, 4, 9, 7),
        "constant_pad_nd average_pool slice",
    ),
    ("equal largest", lambda: nn.AdaptiveMaxPool2d(4), IMAGE, "max_pool"),
    (
        "unequal largest",
        lambda: nn.AdaptiveMaxPool2d((8, 3)),
        IMAGE,
        "slice max_pool " * 8 + "cat " + "slice max_pool " * 3 + "cat",
    ),
    (
        "with indices",
        lambda: nn.AdaptiveMaxPool2d(4, return_indices=True),
        IMAGE,
        "adaptive_max_pool2d getitem getitem",
    ),
    ("mean over channels", of(lambda x: x.mean(1)), IMAGE, "mean"),
    ("mean over all", of(lambda x: x.mean((1, 2, 3))), IMAGE, "mean"),
    ("mean over time", of(lambda x: x.mean(2)), (2, 4, 8), "mean"),
    ("mean in float64", of(lambda x: x.mean((2, 3), dtype=torch.float64)), IMAGE, "mean"),
)
def test_averages(model: Callable[[], nn.Module], shape: tuple[int, ...], ops: str) -> None:
    assert rewritten(model(), shape, passes=[canonicalize]).ops() == ops.split()


@named_cases(
    "model, sizes",
    ("view", of(lambda x: x.view(x.shape[0], 4, 64)), [-1, 4, 64]),
    ("reshape", of(lambda x: x.reshape(x.size(0), 256)), [-1, 256]),
    ("Flatten", nn.Flatten, [-1, 256]),
    ("flatten", of(lambda x: x.flatten(2)), [-1, 4, 64]),
    ("already free", of(lambda x: x.view(-1, 8)), [-1, 8]),
    ("computed batch", of(lambda x: x.view(x.shape[0] * 4, 64)), [-1, 64]),
)
def test_views_leave_the_batch_to_the_runtime(
    model: Callable[[], nn.Module], sizes: list[int]
) -> None:
    result = rewritten(model(), IMAGE, passes=[remove_identity, canonicalize])
    assert result.ops() == ["reshape"]
    assert list(G.output_nodes(result.graph.graph)[0].args[1]) == sizes


@named_cases(
    "model, ops",
    ("zeros", lambda: nn.ZeroPad2d(1), "constant_pad_nd"),
    ("a constant", lambda: nn.ConstantPad2d(1, -3.0), "constant_pad_nd"),
    ("reflected", lambda: nn.ReflectionPad2d(1), "pad"),
    ("norm", lambda: nn.BatchNorm2d(4), "batch_norm"),
    ("chunk", of(lambda x: torch.add(*x.chunk(2, 1))), "slice slice add"),
    ("split, of which one is read", of(lambda x: x.split([1, 3], 1)[1]), "slice"),
    ("unbind", of(lambda x: x.unbind(-3)[-1]), "select"),
    ("diff", of(torch.diff), "slice slice sub"),
    (
        "diff behind its first",
        of(lambda x: torch.diff(x, prepend=x[..., :1])),
        "slice cat slice slice sub",
    ),
    ("split", of(lambda x: x[:, :3] + x.split(3, dim=-3)[0]), "slice slice slice add"),
    ("transposed", lambda: nn.ConvTranspose2d(4, 4, 3, 2, 1, 1), "conv_transpose"),
)
def test_other_forms(model: Callable[[], nn.Module], ops: str) -> None:
    assert rewritten(model(), IMAGE, passes=[canonicalize]).ops() == ops.split()


def _in_place(x: torch.Tensor, conv: nn.Module) -> torch.Tensor:
    y = conv(x)
    y += x
    y[:, 0] = 1
    return F.relu(y, inplace=True)


def test_in_place_operators() -> None:
    model = Function(_in_place, nn.Conv2d(4, 4, 1))
    ops = rewritten(model, IMAGE, passes=[canonicalize]).ops()
    assert not [op for op in ops if op.endswith("_")]


@named_cases(
    "model, shape, ops",
    ("largest of a signal", nn.MaxPool1d(2), (3, 8), ["max_pool"]),
    ("largest", nn.MaxPool2d(2), (3, 8, 8), ["max_pool"]),
    ("mean", nn.AvgPool2d(2), (3, 8, 8), ["average_pool"]),
    ("mean of a volume", nn.AvgPool3d(2), (3, 4, 8, 8), ["average_pool"]),
    ("adaptive mean", nn.AdaptiveAvgPool2d(2), (3, 8, 8), ["average_pool"]),
    ("adaptive largest", nn.AdaptiveMaxPool2d(2), (3, 8, 8), ["max_pool"]),
)
def test_a_pool_of_one_image_is_one_of_a_batch(
    model: nn.Module, shape: tuple[int, ...], ops: list[str]
) -> None:
    dynamic: dict[str, dict[int, str]] = {}
    graph = capture_module(model.eval(), Batch((torch.randn(shape),)), dynamic)
    run_passes(graph.module, [canonicalize])
    found = [str(n.target).split(".")[-2].split("::")[-1] for n in G.calls(graph.graph)]
    assert found == ["unsqueeze", *ops, "squeeze"]
    assert_same(model, graph.module, (torch.randn(shape),))


def test_a_window_over_the_captured_size_stays_a_window() -> None:
    """One window of 4 over 4 x 4 pixels, and four of them over 8 x 8."""
    model = nn.AvgPool2d(4).eval()
    dynamic = {"input": {0: "batch", 2: "height", 3: "width"}}
    graph = capture_module(model, Batch((torch.randn(2, 3, 9, 9),)), dynamic)
    run_passes(graph.module, [canonicalize])
    for height, width in ((9, 9), (4, 4), (8, 13)):
        assert_same(model, graph.module, (torch.randn(3, 3, height, width),))


@pytest.mark.parametrize("transposed", [False, True], ids=["forward", "transposed"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_general_convolution(rank: int, transposed: bool) -> None:
    """aten::convolution, as programs hold it that were decomposed before they were saved."""
    weight = nn.Parameter(torch.randn(4, 4, *[3] * rank))

    model = Function(
        lambda x, parts: torch.convolution(
            x, parts[0], None, [1] * rank, [1] * rank, [1] * rank, transposed, [0] * rank, 1
        ),
        nn.ParameterList([weight]),
    )
    ops = rewritten(model, (2, 4, *[5] * rank), passes=[canonicalize]).ops()
    assert ops == ["conv_transpose" if transposed else "conv"]


@cases(
    "function, ops",
    (F.logsigmoid, ["neg", "softplus", "neg"]),
    (
        lambda x: torch.logaddexp(x, x * 2),
        ["mul", "sub", "abs", "neg", "softplus", "maximum", "add"],
    ),
)
def test_logarithms_stay_finite_in_float32(function: Callable[..., object], ops: list[str]) -> None:
    """The exporter's formulas take the logarithm of 0, and of Inf."""
    result = rewritten(Function(function), (2, 3), passes=[canonicalize])
    assert result.ops() == ops
    far = torch.tensor([[-1e4, -100.0, 0.0], [1.0, 100.0, 1e4]])
    assert torch.allclose(result.graph.module(far), function(far), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d], ids=["max", "average"])
def test_a_window_larger_than_the_image_that_ceil_mode_takes(pool: Callable[..., object]) -> None:
    rewritten(Function(lambda x: pool(x, 2, 3, ceil_mode=True)), (2, 4, 5, 1))
