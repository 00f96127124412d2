"""Every command line and every Python snippet of the documentation works as it stands."""

from collections.abc import Iterator
from inspect import unwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import qtool
from examples.digits.network import digits_net
from qtool.algorithms.registry import STEPS
from qtool.planning.recipe import Recipe
from tests.backends.onnx.operators.outside import restored
from tests.docs.snippets import (
    PAGES,
    ROOT,
    Block,
    blocks,
    commands,
    differences,
    run_command,
    run_python,
)

NEEDS = {
    "examples/detector/README.md": "pycocotools",
    "docs/devices.md": "ai_edge_litert",
    "docs/tutorial-transformer.md": "transformers",
}
"""What pages need that is no part of every installation."""

RUN = [p for p in PAGES if any(b.language in ("python", "sh", "toml") for b in blocks(p))]
"""Pages with something to run."""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """In a folder beside `examples` and `calib_data`; the names that snippets take for granted."""
    for name in ("examples", "calib_data"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    for timed in (qtool.evaluate, qtool.bench):
        monkeypatch.setitem(unwrap(timed).__kwdefaults__, "seconds", 0.05)
    made = qtool.ReportOptions.__init__
    quick = [0.05 if d == qtool.ReportOptions.seconds else d for d in made.__defaults__]
    monkeypatch.setattr(made, "__defaults__", tuple(quick))
    monkeypatch.setattr(qtool.QuantizedModel.speed, "__defaults__", (0.05,))
    model = digits_net()
    model.load_state_dict(load_file(ROOT / "examples/digits/weights.safetensors"))
    images = torch.from_numpy(np.load(ROOT / "calib_data/digits/images.npz")["x"])
    held_out = np.load(ROOT / "examples/digits/eval.npz")
    with restored():
        steps = list(STEPS)
        yield {
            "qtool": qtool,
            "torch": torch,
            "model": model,
            "batches": images[:64].split(32),
            "x": images[:4],
            "loader": torch.from_numpy(held_out["x"][:96]).split(32),
            "labels": held_out["labels"][:96],
        }
        STEPS[:] = steps


@pytest.mark.matrix
@pytest.mark.parametrize("page", RUN)
def test_the_snippets_of_a_page_work(page: str, given: dict[str, Any]) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    printed = ""
    for block in blocks(page):
        where = f"{page}:{block.line}"
        if block.file:
            Path(block.file).write_text(block.text, "utf-8")
        if block.language == "toml" and "rules" in block.text:  # else options of commands
            assert Recipe.of(_saved(block)).rules, where
        elif block.language == "sh":
            printed = "\n".join(run_command(words) for words in commands(block))
        elif block.language == "python" and not block.file:
            printed = run_python(block, given)
        elif block.language == "output":
            assert differences(block.text, printed) == [], f"{where}\n{printed}"


def _saved(block: Block) -> Path:
    path = Path(block.file or "a.toml")
    path.write_text(block.text, "utf-8")
    return path


def test_what_a_page_shows_is_compared() -> None:
    printed = "a 1.5\nb: 20 of 30\nc\n"
    assert differences("a 7\n...\nc\n", printed) == []
    assert differences("b: 1 of 2\na 3\n", printed) == ["a 3"]
    assert differences("b: 1 ...\n", printed) == []
    assert differences("b of 2\n", printed) == ["b of 2"]
    assert differences("top-1 7 (-1 points; x)\n", "top-1 8 (unchanged; x)\n") == []
