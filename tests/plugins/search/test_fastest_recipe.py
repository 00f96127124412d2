"""The choice of layers by their speed: predicted, timed, and repeated by its recipe."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from qtool.cli import main

import qtool
from qtool.backends.onnx.storage import load_outline
from qtool.core.errors import FileError
from qtool.distributed import Ranks
from qtool.evaluation.latency.interleaved_timing import Ratio
from qtool.plugins.search import candidate_files, recipe_for_speed
from qtool.plugins.search.layer_costs import NodeCosts
from tests.plugins.search.nets import captured_ladder, ladder

LAYERS = ("first", "second", "third", "head")


def times(integers: Mapping[str, float], monkeypatch: pytest.MonkeyPatch, edge: float = 0) -> None:
    """Let a float layer take 100 us. integers: layer -> us in integers; edge: us of a boundary."""

    def costs(items: Any, *_: Any) -> NodeCosts:
        extra = tuple(integers.get(name, 100.0) - 100 for name, _ in items.nodes)
        return NodeCosts(400.0, extra, edge, 0.0)

    def speedups(_: Path, files: Sequence[Path], *__: Any) -> tuple[Ratio, ...]:
        taken = [_time(file, integers) for file in files]
        return tuple(Ratio(*[400 / t] * 5) for t in taken)

    monkeypatch.setattr(recipe_for_speed, "measure_costs", costs)
    monkeypatch.setattr(candidate_files, "measure_speedups", speedups)


def _time(file: Path, integers: Mapping[str, float]) -> float:
    """Return the time of a file, whose weights of layers in float are floats."""
    graph = load_outline(file).graph
    codes = {t.name.partition(".weight")[0] for t in graph.initializer if ".weight.codes" in t.name}
    return sum(integers.get(name, 100.0) if name in codes else 100.0 for name in LAYERS)


def choice(**options: Any) -> qtool.FastestRecipe:
    return qtool.fastest_recipe(captured_ladder(), ladder()[1], **options)


def test_layers_that_lose_stay_in_float(monkeypatch: pytest.MonkeyPatch) -> None:
    times({"first": 50, "second": 300, "third": 50, "head": 50}, monkeypatch)
    fastest = choice(accuracy="best")
    assert fastest.in_float == ("second",)
    assert fastest.layers == 4
    assert fastest.default.median == 400 / 450
    assert fastest.fastest.median == 400 / 250
    assert fastest.recipe.accuracy == "best"
    assert str(fastest) == "measured here: 1 of 4 layers stay in float (second), 0.89x -> 1.60x"


def test_what_a_layer_gains_is_lost_at_its_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"first": 300.0, "second": 90.0, "third": 300.0, "head": 20.0}
    times(slow, monkeypatch)
    assert choice().in_float == ("first", "third")
    times(slow, monkeypatch, edge=30)
    assert choice().in_float == ("first", "second", "third")


def test_one_layer_stays_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    times({"first": 500, "second": 300, "third": 200, "head": 150}, monkeypatch)
    fastest = choice()
    assert fastest.in_float == ("first", "second", "third")
    assert str(fastest).endswith("0.35x -> 0.89x; no choice is faster than float")


def test_a_gain_within_the_noise_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    times({"first": 50, "second": 104, "third": 50, "head": 50}, monkeypatch)
    fastest = choice(recipe=[{"select": "first", "as": "float"}])
    assert fastest.in_float == ()
    assert fastest.layers == 3  # a rule has decided on the other
    assert [r.select for r in fastest.recipe.rules] == ["first"]
    assert "all layers in integers" in str(fastest)


def test_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qtool.plugins.search.recipe_for_speed.current", lambda: Ranks(0, 2))
    with pytest.raises(qtool.OptionError, match="timed in one process; leave out "):
        choice()


def test_the_recipe_repeats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is the fastest here."""
    net, batches, _ = ladder()
    monkeypatch.setattr("tests.plugins.search.nets.measured_ladder", lambda: net, raising=False)
    np.save(tmp_path / "x.npy", torch.cat(batches).numpy())

    def run(out: str, *options: str) -> str:
        model, data = "tests.plugins.search.nets:measured_ladder", str(tmp_path / "x.npy")
        common = ["--data", data, "--seconds", "0.01", "-o", str(tmp_path / out)]
        result = CliRunner().invoke(main, ["quantize", model, *common, *options])
        assert result.exit_code == 0, result.output
        return result.output

    recipe = tmp_path / "r.toml"
    first = run("a.onnx", "--measure", str(recipe))
    assert "measured here: " in first
    assert "calibrated on" not in first
    assert recipe.read_text().startswith("# measured here: ")
    assert "measured here: " not in run("b.onnx", "--recipe", str(recipe))
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_the_file_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times({"second": 300.0}, monkeypatch)
    fastest = choice()
    fastest.save(tmp_path / "r.json")
    rules = json.loads((tmp_path / "r.json").read_text())["rules"]
    assert rules == [{"select": "second", "as": "int8-weights"}]
    with pytest.raises(FileError, match=r"r\.txt is no name of a recipe; name it in \.toml or"):
        qtool.QuantizeOptions(measure=tmp_path / "r.txt")
    with pytest.raises(FileError, match=r"r\.json is an input; name another file"):
        qtool.QuantizeOptions(measure=tmp_path / "r.json", recipe=tmp_path / "r.json")


def test_the_calibration_for_times_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It sees one batch; the one of the conversion warns of few samples."""
    times({}, monkeypatch)
    data = [ladder()[1][0][:2]]
    qtool.fastest_recipe(captured_ladder(), data)
    assert not [r for r in caplog.records if r.name == "qtool"]
    qtool.quantize(captured_ladder(), data, accuracy="fast")
    assert "calibrated on 2 samples" in caplog.text
