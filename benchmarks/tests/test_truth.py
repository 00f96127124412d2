"""The truth audit: what is read, measured and judged, on numbers that are known."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.measured import (
    agreement,
    agreement_of,
    integer_share,
    open_file,
    sqnr,
    transposed,
)
from benchmarks.truth.cases import CASES
from benchmarks.truth.page import CHECKS, measured_output, page
from benchmarks.truth.pools import Folders, pools
from benchmarks.truth.printed import printed

MACHINE = {"cpu": "a CPU", "features": [], "system": "Linux", "versions": {"torch": "2"}}
ESTIMATE = {
    "samples": 96,
    "median_db": 31.2,
    "interval_db": [30.1, 32.4],
    "pooled_db": 28.9,
    "worst_db": 17.0,
}


def figures(median: float, pooled: float) -> dict[str, float]:
    return {"samples": 1000, "median_db": median, "pooled_db": pooled, "worst_db": 5.0}


def row(document: dict[str, Any], **measured: Any) -> dict[str, Any]:
    outputs = {"y": figures(31.0, 27.0), "together": figures(31.0, 27.0)}
    real = {"outputs": outputs, "agreement": None, "size_bytes": 100, "float_size_bytes": 400}
    real |= {"integer_share": 1.0, "perplexity": None, "speed": {"ratio": 2.0}}
    said = printed({"size_bytes": 100, **document})
    return {
        "network": "a",
        "case": {"form": "onnx"},
        "outcome": "ok",
        "printed": said,
        "measured": real | measured,
        "machine": MACHINE,
    }


def test_cases_have_their_own_names_and_a_pool() -> None:
    assert len(CASES) >= 80
    assert len({c.name for c in CASES}) == len(CASES)
    assert {c.network for c in CASES} == set(pools(Folders(Path("a"), Path("b"))))


def test_networks_of_the_audit_are_there() -> None:
    sources = (p.source.partition(":") for p in pools(Folders(Path("a"), Path("b"))).values())
    own = [(m, name) for m, _, name in sources if m in ("modules", "sequences")]
    assert len(own) > 20
    for module, name in own:
        assert hasattr(import_module(f"benchmarks.truth.{module}"), name), name


def test_without_an_estimate_the_worst_output_counts() -> None:
    fidelity = {"outputs": [{"output": n, "sqnr_db": db} for n, db in (("x", 30.0), ("y", 20.0))]}
    said = printed({"fidelity": fidelity})
    assert (said["pooled_db"], said["place"], said["kind"]) == (20.0, 1, "calibration")
    assert printed({"fidelity": fidelity}, "x")["pooled_db"] == 30.0


def test_the_estimate_is_read_where_there_is_one() -> None:
    said = printed({"fidelity": {"estimate": ESTIMATE, "holdout": []}})
    assert {k: said[k] for k in ESTIMATE} == ESTIMATE
    by_blocks = printed({"estimate": ESTIMATE, "sqnr": {"y": 20.0}})
    assert by_blocks["interval_db"] == ESTIMATE["interval_db"]


def test_sqnr_of_samples_and_of_all_together() -> None:
    real = {"y": np.array([[10.0], [10.0], [100.0]])}
    coded = {"y": np.array([[11.0], [10.1], [100.0]])}
    values = sqnr([(real, coded)])["y"]
    assert values["median_db"] == pytest.approx(40)
    assert values["worst_db"] == pytest.approx(20)
    assert values["pooled_db"] == pytest.approx(10 * np.log10(10200 / 1.01))
    assert values["worst_share"] == pytest.approx(1 / 1.01)


def test_outputs_of_other_names_are_paired_by_place_and_layout() -> None:
    real = {"a": np.random.default_rng(0).normal(size=(2, 3, 4, 5))}
    coded = {"b": real["a"].transpose(0, 2, 3, 1)}
    assert sqnr([(real, coded)])["a"]["pooled_db"] == 200
    with pytest.raises(ValueError, match="fits no layout"):
        transposed(real["a"], (2, 9, 9, 9))


@pytest.mark.parametrize(
    ("yardstick", "share"), [("argmax 1", 0.5), ("threshold 0", 0.75), ("", None)]
)
def test_agreement(yardstick: str, share: float | None) -> None:
    real, coded = np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[1.0, 2.0], [-2.0, 1.0]])
    assert agreement([({"y": real}, {"y": coded})], yardstick) == share


def test_multiply_accumulates_are_counted_from_the_shapes_that_run(tmp_path: Path) -> None:
    """A convolution of 4 x 4 places and a product behind it, both in float."""
    weights = {"w": np.ones((2, 1, 3, 3), np.float32), "m": np.ones((4, 5), np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["c", "m"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", 1, ["N", 1, 4, 4])
    y = helper.make_tensor_value_info("y", 1, None)
    tensors = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    file = tmp_path / "model.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, file)
    arrays = {"x": np.zeros((1, 1, 4, 4), np.float32)}
    assert integer_share(file, arrays) == 0
    assert open_file(file)(arrays)["y"].shape == (1, 2, 4, 5)


def test_what_is_printed_is_judged() -> None:
    good = {"fidelity": {"estimate": ESTIMATE}, "speed": {"ratio": 2.1}}
    results = {name: check(row(good)) for name, check in CHECKS.items()}
    assert results["interval"] == results["pooled"] == results["speed"] == results["size"] == "ok"
    assert results["integer"] == "not printed"
    assert results["agreement"] == results["perplexity"] == ""
    wrong = {"y": figures(33.0, 25.0), "together": figures(33.0, 25.0)}
    worse = row(good, outputs=wrong, size_bytes=101, speed={"ratio": 1.5})
    misses = {name for name, check in CHECKS.items() if check(worse) == "miss"}
    assert misses == {"interval", "pooled", "speed", "size"}


def test_agreements_hold_on_new_samples() -> None:
    said = {"output": "y", "kind": "class", "value": 0.95, "compared": 96}
    outputs = [{"output": "y", "median_db": 31.2, "low_db": 30.1, "high_db": 32.4}]
    estimate = {**ESTIMATE, "outputs": outputs, "agreements": [said]}
    document = {"fidelity": {"estimate": estimate}}
    check = CHECKS["agreement"]
    assert [check(row(document, agreements=[v])) for v in (0.91, 0.87)] == ["ok", "miss"]
    said["interval"] = [0.94, 0.96]
    assert check(row(document, agreements=[0.91])) == "miss"


def test_agreement_of_a_printed_kind() -> None:
    real, coded = np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[1.0, 2.0], [-2.0, 1.0]])
    pairs = [({"y": real}, {"y": coded})]
    assert agreement_of(pairs, 0, "class", 0) == 0.5
    assert agreement_of(pairs, 0, "threshold", 0) == pytest.approx(6 / 7)
    assert agreement_of(pairs, 0, "cosine", 0) == pytest.approx((1 - 3 / 5) / 2)
    assert agreement_of(pairs, 0, "order", 0) == pytest.approx(0)


def test_calibration_samples_are_counted_for_themselves() -> None:
    document = {"fidelity": {"estimate": {**ESTIMATE, "kind": "calibration"}}}
    one = row(document)
    assert CHECKS["interval"](one) == ""
    assert CHECKS["interval of calibration samples"](one) == "ok"


def test_the_output_that_is_printed_is_the_one_that_is_measured() -> None:
    outputs = {"a": figures(30, 40), "b": figures(35, 20), "together": figures(31, 30)}
    one = row({"fidelity": {"estimate": ESTIMATE}}, outputs=outputs)
    assert measured_output(one) is outputs["a"]
    one["printed"]["output"] = "b"
    assert measured_output(one) is outputs["b"]
    one["printed"]["output"] = "all"
    assert measured_output(one) is outputs["together"]


def test_the_page_has_a_column_for_each_version() -> None:
    refused = {"network": "b", "outcome": "refused", "error": "no", "machine": MACHINE}
    text = page({"old": [row({}), refused], "new": [row({"fidelity": {"estimate": ESTIMATE}})]})
    assert "|  | old | new |" in text
    assert "| interval | 1 not printed | 1 of 1 |" in text
    assert "- b: refused: no" in text
