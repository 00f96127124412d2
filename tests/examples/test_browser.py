"""The page with a sentence encoder and a language model, in Chromium, next to ONNX Runtime."""

from __future__ import annotations

import os
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
EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = (EXAMPLES / "sentence_encoder" / "evaluation.txt").read_text("utf-8").splitlines()[:8]
PROMPT, TOKENS = "The scale of a tensor", 60


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
    lines = {
        "sentence_encoder": [],
        "language_model": ["--task", "text-generation-with-past", "--mode", "weight-only-int4"],
    }
    for name, more in lines.items():
        source = EXAMPLES / name
        line = ["quantize", str(source / "model"), "--data", str(source / "calibration.txt")]
        line += ["--max-length", "96", "--timing", "0", "-o", str(root / name), *more]
        result = CliRunner().invoke(main, line)
        assert result.exit_code == 0, result.output
    return root


@pytest.fixture(scope="module")
def page(models: Path) -> Iterator[Any]:
    with server(models, modules()) as running, browser() as chromium:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        try:
            opened = chromium.new_page()
            opened.set_default_timeout(60_000)
            opened.goto(f"http://127.0.0.1:{running.server_address[1]}/")
            yield opened
        finally:
            running.shutdown()
            thread.join()


def native(folder: Path, text: str) -> np.ndarray[Any, Any]:
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    session = ort.InferenceSession(folder / "onnx" / "model_quantized.onnx")
    names = {i.name for i in session.get_inputs()}
    tokens = tokenizer(text, truncation=True, return_tensors="np")  # as a pipeline does
    inputs = {name: value for name, value in tokens.items() if name in names}
    mean = session.run(None, inputs)[0][0].mean(0)
    return mean / np.linalg.norm(mean)


def test_the_embeddings_are_those_of_the_file(page: Any, models: Path) -> None:
    script = "async (texts) => (await import('/page.js')).embed(texts)"
    for made, text in zip(page.evaluate(script, TEXTS), TEXTS, strict=True):
        # of the same codes; the mean of float states is summed in another order
        expected = native(models / "sentence_encoder", text)
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-6)


def test_the_tokens_are_those_of_the_file(page: Any, models: Path) -> None:
    script = "async (prompt) => (await import('/page.js')).write(prompt)"
    result = page.evaluate(script, PROMPT)
    path = models / "language_model" / "onnx" / "model_q4.onnx"
    assert tuple(result["tokens"]) == qtool.generate(path, PROMPT, tokens=TOKENS).tokens
    assert len(result["tokens"]) == TOKENS
    assert result["perSecond"] > 0


def test_what_a_reader_does(page: Any) -> None:
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
