"""Commands take the folder of a transformers model that `quantize` and `convert` write."""

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile, copytree

import pytest
import torch

import qtool
from qtool.core.errors import FileError
from qtool.core.path_arguments import model_file
from tests.cli.conftest import Cli, workplace

EXAMPLE = Path(__file__).parents[2] / "examples/language_model"
MODEL = (str(EXAMPLE / "model"), "--task", "text-generation-with-past")
FORMAT = {"format": "pt"}
TEXTS = ("--data", str(EXAMPLE / "evaluation.txt"), "--samples", "2", "--max-length", "24")
COMMANDS = {
    "verify": TEXTS,
    "inspect": (),
    "evaluate": ("--model", *MODEL, *TEXTS, "--seconds", "0.1"),
    "bench": (*TEXTS, "--seconds", "0.1", "--batch-sizes", "1"),
    "generate": ("A scale", "--tokens", "3"),
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A folder with a folder of a model, made by way of a calibration."""
    pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        cli = workplace(tmp_path_factory.mktemp("folders"), patch)
        cli("calibrate", *MODEL, *TEXTS, "-o", "lm.calib")
        conversion = ("--mode", "weight-only-int4", "--accuracy", "fast", "--seconds", "0")
        cli("convert", *MODEL, "--calibration", "lm.calib", *conversion, "-o", "out")
        yield cli


def test_convert_writes_what_libraries_look_for(cli: Cli) -> None:
    out = cli.folder / "out"
    assert json.loads((out / "quantize_config.json").read_text())["files"]
    assert (out / "tokenizer.json").is_file()
    assert model_file(out) == out / "onnx" / "model_q4.onnx"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_take_the_folder(command: str, cli: Cli) -> None:
    assert "model_q4" in cli(command, "out", *COMMANDS[command], code=(0, 1)).output


def test_functions_take_the_folder(cli: Cli) -> None:
    assert "model_q4" in str(qtool.inspect(cli.folder / "out").summary())
    assert qtool.generate(str(cli.folder / "out"), "A scale", tokens=2).tokens


def test_a_folder_without_a_file_or_with_several(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"is a folder without an \.onnx or \.tflite file; give"):
        model_file(tmp_path)
    for name in ("encoder.onnx", "decoder.onnx"):
        (tmp_path / name).touch()
    with pytest.raises(
        FileError, match=r"several model files \(decoder.onnx, encoder.onnx\); name"
    ):
        qtool.verify(tmp_path)
    assert model_file(tmp_path / "none") == tmp_path / "none"


def test_the_processors_may_be_in_the_folder_of_any_file(cli: Cli) -> None:
    copyfile(cli.folder / "out" / "onnx" / "model_q4.onnx", cli.folder / "alone.onnx")
    assert "model_q4" in cli("bench", "alone.onnx", "out", *COMMANDS["bench"], code=(0, 1)).output


def test_weights_alone_of_a_folder_need_no_data(cli: Cli) -> None:
    line = ("--mode", "weight-only-int4", "--data", "none", "--seconds", "0", "-o", "nodata.onnx")
    assert "SQNR is that of one sentence" in cli("quantize", *MODEL, *line).stderr


def test_a_decoder_is_written_as_onnx(cli: Cli) -> None:
    message = cli.refuses("quantize", *MODEL, *TEXTS, "-o", "lm.tflite")
    assert "a language model with a KV cache becomes an .onnx file; give -o lm.onnx" in message


def test_a_model_is_loaded_with_the_cache_of_its_file(cli: Cli) -> None:
    shown = cli("evaluate", "out", "--model", MODEL[0], *TEXTS, "--seconds", "0.01").stdout
    assert "same next token on" in shown
    assert "step" in shown
    ids = {"input_ids": torch.ones(1, 4, dtype=torch.long)}
    with pytest.raises(qtool.DataError, match="load that with task='text-generation-with-past'"):
        qtool.evaluate("out", qtool.load_model(MODEL[0]), [ids])


def test_what_a_folder_holds_and_the_model_does_not_use_is_said(cli: Cli) -> None:
    """Loading is silenced, since transformers prints tables; notes of qtool are not."""
    from safetensors.torch import load_file, save_file

    copytree(MODEL[0], "headed")
    tensors = load_file("headed/model.safetensors")
    save_file(tensors | {"score.weight": torch.ones(2)}, "headed/model.safetensors", FORMAT)
    shown = cli("calibrate", "headed", *MODEL[1:], *TEXTS, "-o", "headed.calib")
    assert "headed holds weights that LlamaForCausalLM does not use" in shown.stderr
    assert "UNEXPECTED" not in shown.output
