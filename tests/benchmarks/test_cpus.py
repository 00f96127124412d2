"""The page of other processors: what a cell says."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cpus_page import cell, page

FOUND: dict[str, Any] = {
    "outputs": 10,
    "outputs_identical": 10,
    "codes": 100,
    "codes_identical": 100,
    "sqnr_db": None,
    "changed_share": 0.0,
    "first": None,
    "kernels": 5,
    "wrong_kernels": [],
}
OFF = {"outputs_identical": 1, "sqnr_db": 21.04, "changed_share": 0.125}
FIRST = {"node": "a", "op": "Conv", "float_nodes": []}
SAID = {
    "identical": {},
    "codes identical, 21.0 dB, 12.5 %": OFF,
    "kernels identical, 21.0 dB, 12.5 %": {**OFF, "codes_identical": 99, "first": FIRST},
    "**2 of 5 kernels**, 21.0 dB": {
        **OFF,
        "changed_share": None,
        "wrong_kernels": ["a", "b"],
        "codes_identical": 9,
    },
}


@pytest.mark.parametrize("text", SAID)
def test_a_cell(text: str) -> None:
    assert cell(FOUND | SAID[text]) == text


def test_what_was_not_run() -> None:
    assert cell(None) == ""
    assert cell({"error": "no"}) == "not run"


def test_a_page() -> None:
    machine = {"cpu": "A", "features": [], "system": "B", "versions": {"qtool": "1"}}
    same = {"target": "onnxruntime", "samples": 64, "integer": 0.5, "machine": machine}
    rows = [
        same | {"network": "x", "float": ["Add"], "cpus": {"wasm": FOUND}},
        same | {"network": "y", "float": [], "cpus": {"wasm": FOUND | {"first": FIRST} | OFF}},
        same | {"network": "z", "refused": "no such op", "cpus": {}},
    ]
    text = page(rows, ["haswell", "wasm"])
    assert "| network | integer MACs | float nodes | wasm |" in text  # no column of no results
    assert "| x | 50.0 % | Add | identical |" in text
    assert "| z | | refused: no such op | |" in text
    assert "2 networks, 200 codes; 0 of 10 integer kernels give other results." in text
    assert "- y, wasm: a (Conv)" in text
    assert page([], ["wasm"]) == "Nothing is measured.\n"
