"""onnxruntime-genai loads a folder as it is written, and gives the tokens of `qtool generate`."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from qtool.cli import main

import qtool
from tests.frontends.conftest import TEXTS
from tests.frontends.huggingface.test_causal_decoder import TASK
from tests.frontends.huggingface.test_fused_decoder import model_of
from tests.frontends.huggingface.test_model_folder import tokenizer

library = pytest.importorskip("transformers")
genai: Any = pytest.importorskip("onnxruntime_genai")
NEW = 20


@pytest.mark.parametrize(
    ("attention", "cache"), [("fused", "float"), ("fused", "int8"), ("masked", "float")]
)
def test_the_tokens_of_a_folder(attention: str, cache: str, tmp_path: Path) -> None:
    source, out = tmp_path / "model", tmp_path / "out" / "model.onnx"
    model_of("Llama").save_pretrained(source)
    tokenizer(library).save_pretrained(source)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    line = ["quantize", str(source), "--task", TASK, "--data", str(texts), "-o", str(out)]
    line += ["--mode", "weight-only-int4", "--seconds", "0", "--cache", cache]
    result = CliRunner().invoke(main, [*line, "--attention", attention])
    assert result.exit_code == 0, result.output
    prompt = TEXTS[0]
    expected = qtool.generate(out, prompt, tokens=NEW)
    model = genai.Model(str(out.parent))
    ids = library.AutoTokenizer.from_pretrained(source)(prompt)["input_ids"]
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(ids) + NEW, do_sample=False)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
    tokens = tuple(map(int, generator.get_sequence(0)[len(ids) :]))
    assert tokens == expected.tokens[: len(tokens)]
    assert len(expected.tokens) - len(tokens) in (0, 1)  # it leaves out a token that ends texts
