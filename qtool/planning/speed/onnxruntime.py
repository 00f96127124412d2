"""Costs of ONNX Runtime's CPU provider, measured by benchmarks/chain_costs.py."""

from __future__ import annotations

from qtool.planning.speed.costs import CostTable

X64_VNNI = CostTable(
    measured="onnxruntime 1.31.1, AMD EPYC with AVX-512 VNNI, November 2026",
    in_float={
        "call": 514,
        "depthwise result": 0.0761,
        "depthwise tap": 0.00904,
        "image mac": 0.00793,
        "input": 0.0108,
        "mac": 0.00828,
        "narrow mac": 0.00606,
        "narrow term": 0.222,
        "result": 0.0183,
    },
    in_integers={
        "call": 829,
        "depthwise pixel": 0.539,
        "depthwise rest": 2.18,
        "depthwise result": 0.0501,
        "depthwise tap": 0.0122,
        "mac": 0.00202,
        "narrow pixel": 5.41,
        "narrow term": 0.0562,
        "pixel": 0.234,
        "result": 0.0349,
        "tap": 0.76,
    },
    elementwise={
        "add": (0.08, 0.09),
        "mul": (0.08, 0.18),
        "sigmoid": (0.23, 0.24),
    },
    call=500,
    boundary=400,
    boundary_element=0.07,
)
