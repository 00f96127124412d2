"""Names in little room, and times of blocks."""

from qtool.evaluation.latency.node_times import NodeTime, Profile
from qtool.evaluation.report.page.figures import _block_starts
from qtool.evaluation.report.page.render import block_times
from qtool.evaluation.report.page.short_names import block_of, short_name, short_names


def test_names_are_cut_between_modules() -> None:
    assert short_name("blocks.0.se", 20) == "blocks.0.se"
    assert short_name("blocks.1.se.sigmoid", 16) == "…1.se.sigmoid"
    assert short_name("a_long_name_without_modules", 8) == "…modules"


def test_the_modules_of_all_names_are_left_out() -> None:
    assert short_names(["net.body.0.conv", "net.body.1.conv"], 20) == ["0.conv", "1.conv"]
    assert short_names(["net.body", "net.body.0.conv"], 20) == ["body", "body.0.conv"]
    assert short_names(["x", "net.conv"], 20) == ["x", "net.conv"]
    assert short_names(["net.body.conv"], 20) == ["net.body.conv"]


def test_blocks_end_at_the_first_number() -> None:
    names = ["model.layers.3.mlp.0.up", "layer1.0.conv1", "stem", "encoder.norm"]
    assert [block_of(n) for n in names] == ["model.layers.3", "layer1.0", "stem", "encoder"]


def test_times_of_blocks() -> None:
    nodes = [NodeTime(f"layers.{i % 3}.{i}", ("A", "B"), (1.0, float(i % 3))) for i in range(30)]
    rows = block_times(Profile(32, 1, tuple(nodes)))
    assert [(row.name, row.nodes, row.microseconds) for row in rows] == [
        ("layers.2", 10, (10.0, 20.0)),
        ("layers.1", 10, (10.0, 10.0)),
        ("layers.0", 10, (10.0, 0.0)),
    ]
    assert rows[0].loss == 10
    assert block_times(Profile(32, 1, tuple(nodes[:9]))) == []


def test_ticks_of_blocks_do_not_touch() -> None:
    names = ["x", "stem.0", "stem.2", *(f"blocks.{i // 30}.{i}" for i in range(90))]
    assert _block_starts(names) == {3: "blocks.0", 33: "blocks.1", 63: "blocks.2"}
