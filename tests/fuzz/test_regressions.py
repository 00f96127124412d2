"""Whatever was found once: small cases that failed, and do not any more."""

import json
from pathlib import Path

import pytest

from tests.fuzz.checks import check_graph, check_network
from tests.fuzz.graph import Graph
from tests.fuzz.network import Network

FOLDER = Path(__file__).parent / "regressions"
CASES = sorted(FOLDER.glob("*/*.json"))


@pytest.mark.parametrize("file", CASES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_what_failed_once(file: Path) -> None:
    data = json.loads(file.read_text())
    if file.parent.name == "graphs":
        verdict = check_graph(Graph.from_json(data))
    else:
        verdict = check_network(Network.from_json(data))
    assert verdict.kind in ("right", "noted", "float"), verdict
