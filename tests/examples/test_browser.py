"""The page with a sentence encoder and a language model, in Chromium, next to ONNX Runtime."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from qtool.cli import main

import qtool
from examples.browser.serve import server
from tests.evaluation.report.page.browser import browser

library = pytest.importorskip("transformers")
pytestmark = pytest.mark.matrix
EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = (EXAMPLES / "sentence_encoder" / "evaluation.txt").read_text("utf-8").splitlines()[:8]
PROMPT, TOKENS = "The scale of a tensor", 60
OPTIONS = {
    "sentence_encoder": (),
    "language_model": (
        *("--task", "text-generation-with-past", "--max-length", "96", "--mode", "dynamic"),
    ),
}
"""Folder -> options of its file."""


def modules() -> Path:
    """The node_modules that NODE_PATH names, with transformers.js in it."""
    for folder in os.environ.get("NODE_PATH", "").split(os.pathsep):
        if (Path(folder) / "@huggingface" / "transformers").is_dir():
            return Path(folder)
    pytest.skip("needs @huggingface/transformers: npm install it, and name its node_modules in "
                "NODE_PATH")  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that the page loads; what the first lines of serve.py write."""
    modules()
    root = tmp_path_factory.mktemp("models")
    for name, options in OPTIONS.items():
        source = EXAMPLES / name
        line = ["quantize", str(source / "model"), "--data", str(source / "calibration.txt")]
        line += ["--target", "onnxruntime-web", "--layout", "transformers.js", "--seconds", "0"]
        result = CliRunner().invoke(main, [*line, "-o", str(root / name), *options])
        assert result.exit_code == 0, result.output
    return root


@pytest.fixture(scope="module")
def page(models: Path) -> Iterator[Any]:
    with server(models, modules()) as running, browser() as chromium:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        try:
            opened = chromium.new_page()
            opened.set_default_timeout(120_000)
            opened.goto(f"http://127.0.0.1:{running.server_address[1]}/")
            yield opened
        finally:
            running.shutdown()
            thread.join()


def native(folder: Path, tmp_path: Path) -> Path:
    """A copy of a folder with its file where qtool looks for it."""
    copy = tmp_path / "native"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.onnx"))
    shutil.copy(folder / "onnx" / "model_quantized.onnx", copy / "model.onnx")
    return copy


def embedding(folder: Path, text: str) -> np.ndarray[Any, Any]:
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    session = ort.InferenceSession(folder / "model.onnx")
    names = {i.name for i in session.get_inputs()}
    tokens = tokenizer(text, truncation=True, return_tensors="np")  # as a pipeline does
    inputs = {name: value for name, value in tokens.items() if name in names}
    mean = session.run(None, inputs)[0][0].mean(0)
    return mean / np.linalg.norm(mean)


def test_the_embeddings_are_those_of_the_file(page: Any, models: Path, tmp_path: Path) -> None:
    folder = native(models / "sentence_encoder", tmp_path)
    script = "async (texts) => (await import('/page.js')).embed(texts)"
    for made, text in zip(page.evaluate(script, TEXTS), TEXTS, strict=True):
        # of the same codes in WebAssembly; floats are summed in another order
        np.testing.assert_allclose(made, embedding(folder, text), rtol=0, atol=1e-4)


def test_the_tokens_are_those_of_the_file(page: Any, models: Path, tmp_path: Path) -> None:
    script = "async (prompt) => (await import('/page.js')).write(prompt)"
    result = page.evaluate(script, PROMPT)
    folder = native(models / "language_model", tmp_path)
    expected = qtool.generate(folder / "model.onnx", PROMPT, tokens=TOKENS).tokens
    assert tuple(result["tokens"]) == expected
    assert len(result["tokens"]) == TOKENS
    assert result["perSecond"] > 0


def test_what_a_reader_does(page: Any) -> None:
    page.evaluate("document.querySelectorAll('output.figures').forEach((o) => (o.value = ''))")
    page.click("#compare")
    page.wait_for_function(
        "/per sentence/.test(document.querySelector('#encoder-figures').textContent)"
    )
    assert page.locator("#similarities tr").count() == 2
    page.click("#write")
    page.wait_for_function(
        "/per second/.test(document.querySelector('#writer-figures').textContent)"
    )
    assert page.inner_text("#given") == PROMPT
    assert page.inner_text("#text").strip()
    assert page.inner_text("#writer-figures").startswith("60 tokens, ")
    assert page.is_enabled("#write")


def test_a_model_that_is_missing_is_said(page: Any) -> None:
    other = page.context.browser.new_page()
    other.route("**/models/**", lambda route: route.fulfill(status=404))
    other.goto(page.url)
    other.click("#compare")
    other.wait_for_selector("#encoder-figures.failed", timeout=60_000)
    assert other.inner_text("#encoder-figures").startswith("It does not run: ")
    assert other.is_enabled("#compare")
    other.close()
