"""The page of unseen networks: what is counted, and what is said of outputs that are far off."""

from __future__ import annotations

from typing import Any

from benchmarks.unseen.page import below_bf16, page

MACHINE = {"cpu": "a CPU", "features": [], "system": "Linux", "versions": {"torch": "2"}}


def row(name: str, outcome: str = "ok", **more: Any) -> dict[str, Any]:
    given = {
        "network": name,
        "group": "own",
        "outcome": outcome,
        "error": "",
        "parameters": 1000,
        "seconds": 1.0,
        "share": 0.99999,
        "weighted_share": 1.0,
        "in_float": {"Add": 2},
        "identical": 9,
        "elements": 9,
        "said": [],
        "names": ["a", "b"],
        "sqnr": [30.0, None],
        "bf16": [40.0, None],
        "other": "yes",
        "ratio": 1.5,
        "machine": MACHINE,
    }
    return {**given, **more}


def test_what_torch_cannot_write_is_not_counted() -> None:
    text = page([row("x"), row("y", "refused", error="no"), row("z", "torch.onnx fails")])
    assert "**1 of 2 networks convert and verify (1 more, which torch.onnx" in text
    assert "- `y` (refused): no" in text
    assert "| x | ok | 0.00 M | 99.99 % (100 %) | 2 Add | 100 % | 30.0, - | 40.0 |" in text


def test_outputs_far_below_the_yardstick() -> None:
    low = row("x", sqnr=[10.0, 9.0], bf16=[36.0, 30.0], said=["warning: low", "else"])
    assert below_bf16(low) == [("a", 10.0, 36.0)]
    assert "- `x`: a 10.0 dB (36.0). Said: warning: low" in page([low])
    assert below_bf16(row("x", "refused", bf16=None)) == []
    assert "below their bfloat16 yardstick" not in page([row("x")])


def test_places_of_this_machine_are_left_out() -> None:
    text = page([row("y", "refused", error="at /a/site-packages/torch/x.py | <b>\x1b[96m")])
    assert "at torch/x.py / &lt;b>" in text
