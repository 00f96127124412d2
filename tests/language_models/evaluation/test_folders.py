"""Folders of decoders that another tool wrote: judged by what lies in them, without data."""

import shutil
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from qtool.cli import main

import qtool
from qtool.core.errors import DataError
from tests.frontends.huggingface.test_causal_decoder import folder  # noqa: F401  # a fixture
from tests.language_models.evaluation.test_generation import export

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A folder of onnxruntime-genai, whose file has the cache in an order of its own."""
    place = tmp_path_factory.mktemp("genai")
    model = onnx.load(export(folder, place / "model.onnx", "fused"))
    for ports in (model.graph.input, model.graph.output):
        own = sorted(ports, key=lambda port: port.name)
        del ports[:]
        ports.extend(own[::-1])
    onnx.save(model, place / "model.onnx")
    (place / "genai_config.json").write_text('{"model": {"decoder": {"filename": "model.onnx"}}}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, place)
    return place


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_folder_is_compared_with_that_of_the_float_model(
    folder: Path,  # noqa: F811
    written: Path,
    tmp_path: Path,
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sat\nthe dog ran\na cat ran to the dog\n")
    for model in (folder, written):  # loaded with its cache; another file of a decoder
        printed = run(
            *("evaluate", written, "--model", model, "--data", texts),
            *("--other-model", "--seconds", "0.01"),
        )
        assert "perplexity" in printed
        assert "same next token on all" in printed


def test_a_gate_without_data_has_texts_of_the_float_file(written: Path) -> None:
    assert "perplexity" in run("gate", written, "--against", written)
    result = qtool.gate(written, written)
    assert (result.metric.name, result.samples) == ("perplexity", 32)
    with pytest.raises(DataError, match="there is no data; give some with 'data'"):
        qtool.gate(written, written, labels=[1])
