"""The page with a sentence encoder and a language model, in Chromium, next to ONNX Runtime."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from qtool.cli import main

import qtool
from examples.browser.serve import server
from qtool.backends.onnxruntime.disable_input_rounding import disable_input_rounding
from tests.evaluation.report.page.browser import browser

library = pytest.importorskip("transformers")
pytestmark = pytest.mark.matrix
EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = (EXAMPLES / "sentence_encoder" / "evaluation.txt").read_text("utf-8").splitlines()[:8]
PROMPT, TOKENS = "The scale of a tensor", 60
DEVICES = ("wasm", "webgpu")
SOFTWARE_GPU = (  # SwiftShader, which lies in Chromium
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
)
ON_GPU = ("--target", "onnxruntime-webgpu", "--mode", "weight-only-int4")
LINES = {
    "sentence_encoder": ((), ("--target", "onnxruntime-web"), ON_GPU),
    "language_model": (
        ("--task", "text-generation-with-past", "--max-length", "96"),
        ("--target", "onnxruntime-web", "--mode", "dynamic"),
        ON_GPU,
    ),
}
"""Folder -> options of both files, of that for WebAssembly, of that for WebGPU."""


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
    for name, (both, *each) in LINES.items():
        source = EXAMPLES / name
        for options in each:
            line = ["quantize", str(source / "model"), "--data", str(source / "calibration.txt")]
            line += ["--layout", "transformers.js", "--seconds", "0", "-o", str(root / name)]
            result = CliRunner().invoke(main, [*line, *both, *options])
            assert result.exit_code == 0, result.output
        assert "device wasm: model_quantized.onnx; device webgpu: model_q4.onnx" in result.output
    return root


@pytest.fixture(scope="module")
def page(models: Path) -> Iterator[Any]:
    with server(models, modules()) as running, browser(*SOFTWARE_GPU) as chromium:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        try:
            opened = chromium.new_page()
            opened.set_default_timeout(120_000)
            opened.goto(f"http://127.0.0.1:{running.server_address[1]}/")
            opened.wait_for_function("document.querySelector('#adapter').textContent")
            yield opened
        finally:
            running.shutdown()
            thread.join()


def need_gpu(page: Any, device: str) -> None:
    if device == "webgpu" and not page.is_enabled("[value=webgpu]"):
        pytest.skip("this Chromium has no WebGPU adapter in software")


def native(folder: Path, device: str, tmp_path: Path) -> Path:
    """A copy of a folder with the file of a device alone, in the arithmetic of its provider.

    The WebGPU provider rounds no inputs of layers.
    """
    copy = tmp_path / "native"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.onnx"))
    name = {"wasm": "model_quantized.onnx", "webgpu": "model_q4.onnx"}[device]
    model = onnx.load(folder / "onnx" / name)
    if device == "webgpu":
        disable_input_rounding(model.graph)
    onnx.save(model, copy / "model.onnx")
    return copy


def embedding(folder: Path, text: str) -> np.ndarray[Any, Any]:
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    session = ort.InferenceSession(folder / "model.onnx")
    names = {i.name for i in session.get_inputs()}
    tokens = tokenizer(text, truncation=True, return_tensors="np")  # as a pipeline does
    inputs = {name: value for name, value in tokens.items() if name in names}
    mean = session.run(None, inputs)[0][0].mean(0)
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize("device", DEVICES)
def test_the_embeddings_are_those_of_the_file(
    device: str, page: Any, models: Path, tmp_path: Path
) -> None:
    need_gpu(page, device)
    folder = native(models / "sentence_encoder", device, tmp_path)
    script = "async ([texts, device]) => (await import('/page.js')).embed(texts, device)"
    for made, text in zip(page.evaluate(script, [TEXTS, device]), TEXTS, strict=True):
        # of the same codes in WebAssembly; floats are summed in another order
        np.testing.assert_allclose(made, embedding(folder, text), rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_the_tokens_are_those_of_the_file(
    device: str, page: Any, models: Path, tmp_path: Path
) -> None:
    need_gpu(page, device)
    script = "async ([prompt, device]) => (await import('/page.js')).write(prompt, device)"
    result = page.evaluate(script, [PROMPT, device])
    folder = native(models / "language_model", device, tmp_path)
    expected = qtool.generate(folder / "model.onnx", PROMPT, tokens=TOKENS).tokens
    assert tuple(result["tokens"]) == expected
    assert len(result["tokens"]) == TOKENS
    assert result["perSecond"] > 0


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_reader_does(device: str, page: Any) -> None:
    need_gpu(page, device)
    page.check(f"[value={device}]")
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
