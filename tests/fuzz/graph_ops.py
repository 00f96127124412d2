"""What random ONNX graphs are made of: one row per operator, also those without a reader."""

import numpy as np

from tests.fuzz import graph_draws as d
from tests.fuzz.graph_maker import Drawn, Row

MICROSOFT = "com.microsoft"
_SIMPLE = (
    "Relu Sigmoid Tanh Exp Softplus Softsign Sqrt Erf Floor Ceil Round Sin Cos Reciprocal Log"
    " Identity HardSwish Mish Neg Abs Sign Tan Atan Sinh Cosh Asinh GlobalMaxPool GlobalAveragePool"
)
_COMPARED = "Equal Greater GreaterOrEqual Less LessOrEqual"
_REDUCTIONS = (
    "ReduceMean ReduceSum ReduceMax ReduceMin ReduceL2 ReduceL1 ReduceProd ReduceLogSumExp"
    " ReduceSumSquare ReduceLogSum"
)

ROWS: dict[str, Row] = {
    "Conv": Row(d.conv, d.MAPS, often=8),
    "ConvTranspose": Row(d.conv, d.MAPS),
    "Gemm": Row(d.gemm, (2,), often=6),
    "MatMul": Row(d.matmul, (2, 3, 4), often=6),
    **{name: Row(d.recurrent, (3,)) for name in ("LSTM", "GRU", "RNN")},
    "MaxPool": d.pool(ceil_mode=(0, 1), storage_order=(0, 0, 1)),
    "AveragePool": d.pool(ceil_mode=(0, 1), count_include_pad=(0, 1)),
    "LpPool": d.pool(p=(1, 2)),
    "BatchNormalization": Row(d.norm, (2, *d.MAPS), often=3),
    "LayerNormalization": Row(d.norm, (2, 3, 4)),
    "InstanceNormalization": Row(d.norm, d.MAPS),
    "GroupNormalization": Row(d.norm, d.MAPS),
    **{
        name: d.unary(d.FLOATS if name in ("Relu", "Sigmoid", "Tanh", "Exp") else ("float32",))
        for name in _SIMPLE.split()
    },
    **{name: d.binary(often=3) for name in ("Add", "Mul", "Sub", "Div")},
    **{name: d.many() for name in ("Sum", "Min", "Max", "Mean")},
    **{name: d.binary(d.NUMBERS) for name in _COMPARED.split()},
    **{name: d.binary(("bool",)) for name in ("And", "Or", "Xor")},
    **{name: Row(d.reduction) for name in _REDUCTIONS.split()},
    "Not": d.unary(("bool",)),
    "Mod": d.binary(("float32", "int64"), fmod=(1, 0)),
    "Pow": Row(
        lambda m, x: Drawn((x, m.constant(m.random.choice((2.0, 3.0, 1.0)), "float32")), {})
    ),
    "LeakyRelu": d.unary(alpha=(0.1, 0.01, 1.5)),
    "Elu": d.unary(alpha=(1.0, 0.5)),
    "Selu": d.unary(alpha=(1.5,), gamma=(1.0, 1.2)),
    "Celu": d.unary(alpha=(1.0, 2.0)),
    "ThresholdedRelu": d.unary(alpha=(1.0, 0.2)),
    "Shrink": d.unary(bias=(0.0, 0.5), lambd=(0.5, 0.1)),
    "HardSigmoid": d.unary(alpha=(0.2, 1 / 6), beta=(0.5, 0.3)),
    "Gelu": d.unary(approximate=("none", "tanh")),
    "Swish": d.unary(alpha=(1.0, 0.5)),
    "PRelu": Row(d.prelu, (2, 3, 4)),
    "Clip": Row(d.clip, dtypes=("float32", "float32", "int64")),
    "Softmax": d.with_axis(),
    "LogSoftmax": d.with_axis(),
    "Hardmax": d.with_axis(),
    "LpNormalization": d.with_axis(p=(1, 2)),
    "MeanVarianceNormalization": Row(d.fixed(), (4,)),
    "LRN": d.unary(size=(1, 3), alpha=(1e-3,)),
    "ArgMax": d.with_axis(keepdims=(0, 1), select_last_index=(0, 1)),
    "ArgMin": d.with_axis(keepdims=(0, 1)),
    "CumSum": Row(
        lambda m, x: Drawn((x, m.constant(m.axis(x))), m.pick(exclusive=(0, 1), reverse=(0, 1)))
    ),
    "Dropout": Row(lambda m, x: Drawn((x,), {}, m.random.choice((1, 1, 2)))),
    "Cast": Row(
        lambda m, x: Drawn((x,), {"to": m.random.choice((1, 1, 1, 6, 7, 9, 10, 11))}),
        dtypes=d.ALL,
        often=2,
    ),
    "Reshape": Row(d.reshape, (2, 3, 4), often=2),
    "Flatten": Row(lambda m, x: Drawn((x,), m.pick(axis=(1, 2, -1))), (2, 3, 4), often=2),
    "Transpose": Row(d.transpose, (2, 3, 4, 5), often=2),
    "Squeeze": Row(d.axes_given),
    "Unsqueeze": Row(d.axes_given, (1, 2, 3, 4)),
    "Concat": Row(d.concat, (2, 3, 4, 5), often=3),
    "Split": Row(d.split, (2, 3, 4), often=2),
    "Slice": Row(d.cut, (2, 3, 4, 5), often=2),
    "Gather": Row(d.gather, (2, 3, 4)),
    "look up": Row(d.looked_up, (1, 2), ("int64",)),
    "GatherElements": Row(d.gather, (2, 3)),
    "Expand": Row(
        lambda m, x: Drawn((x, m.constant([2, *[1] * m.values[x].ndim][-3:])), {}), (2, 3)
    ),
    "Tile": Row(
        lambda m, x: Drawn((x, m.constant([1, 2, *[1] * (m.values[x].ndim - 2)])), {}), (2, 3, 4)
    ),
    "Pad": Row(d.pad, (2, 3, 4, 5), often=2),
    "Resize": Row(d.resize, (3, 4, 5), often=2),
    "DepthToSpace": Row(
        lambda m, x: Drawn((x,), {"blocksize": 2, **m.pick(mode=("DCR", "CRD"))}), (4,)
    ),
    "SpaceToDepth": Row(d.fixed(blocksize=2), (4,)),
    "Einsum": Row(d.einsum, (2, 3)),
    "Where": Row(
        lambda m, x: Drawn(
            (
                x,
                y := m.random.choice([n for n, v in m.values.items() if v.dtype == np.float32]),
                m.other(y),
            ),
            {},
        ),
        dtypes=("bool",),
    ),
    "Shape": Row(d.of_sizes, dtypes=d.ALL),
    "Size": Row(d.fixed(), dtypes=d.ALL),
    "ConstantOfShape": Row(
        d.fixed(value={"constant": [0.5], "dtype": "float32"}), (1,), ("int64",)
    ),
    "If": Row(d.branched),
    "Loop": Row(d.loop),
    "TopK": Row(d.top),
    "NonZero": Row(d.fixed()),
    "ScatterElements": Row(d.scatter, (2, 3)),
    "OneHot": Row(d.one_hot, (1, 2), ("int64",)),
    "GridSample": Row(d.grid, (4,)),
    "Trilu": d.unary(upper=(0, 1)),
    "IsNaN": d.unary(),
    "IsInf": d.unary(detect_negative=(0, 1)),
    "Det": Row(d.fixed(), (2, 3)),
    "EyeLike": Row(d.fixed(dtype=1), (2,)),
    "Unique": Row(d.fixed(sorted=1), (1, 2)),
    "ReverseSequence": Row(
        lambda m, x: Drawn((x, m.constant([1] * m.values[x].shape[1])), {}), (2, 3)
    ),
    "GatherND": Row(d.fixed(([[0, 0]],)), (2, 3)),
    "SplitToSequence": Row(lambda m, x: Drawn((x,), {"axis": 1}), (2, 3)),
    "FusedMatMul": Row(
        lambda m, x: Drawn((x, m.weights(m.values[x].shape[-1], 3)), {"alpha": 0.5}),
        (2, 3),
        domain=MICROSOFT,
    ),
    "FastGelu": d.unary(domain=MICROSOFT),
    "QuickGelu": Row(d.fixed(alpha=1.5), domain=MICROSOFT),
    "BiasGelu": Row(
        lambda m, x: Drawn((x, m.weights(m.values[x].shape[-1])), {}), (2, 3), domain=MICROSOFT
    ),
    "SkipLayerNormalization": Row(d.skip_norm, (3,), domain=MICROSOFT),
}
