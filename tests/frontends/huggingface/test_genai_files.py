"""Whisper for onnxruntime-genai: two graphs on the weights of the files for other libraries."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qtool.core.errors import ExportError, VerificationError
from qtool.frontends.huggingface import genai_files
from qtool.frontends.huggingface.genai_files import AUDIO, PROCESSOR, TEXT, write_speech_files
from tests.frontends.conftest import save_sound
from tests.frontends.huggingface.test_consumers import convert
from tests.frontends.huggingface.test_encoder_decoder import whisper

pytestmark = pytest.mark.matrix  # a conversion of two graphs and a library

library = pytest.importorskip("transformers")
PARTS = ("onnx/encoder_model_quantized.onnx", "onnx/decoder_model_merged_quantized.onnx")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whisper")
    model, _ = whisper(max_source_positions=50, decoder_layers=2)
    model.save_pretrained(root / "model")
    library.WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(root / "model")
    save_sound(root / "sounds" / "0.wav", 0)
    rows = {"file_name": "0.wav", "decoder_input_ids": [1, 5, 6, 7]}
    (root / "sounds" / "metadata.jsonl").write_text(f"{json.dumps(rows)}\n")
    line = ["--task", "automatic-speech-recognition-with-past", "--accuracy", "fast"]
    return convert(root / "model", root / "out", root / "sounds", *line)


def test_the_configuration_names_what_the_graphs_have(folder: Path) -> None:
    model = json.loads((folder / "genai_config.json").read_text())["model"]
    assert (model["type"], model["decoder"]["num_hidden_layers"]) == ("whisper", 2)
    for part in ("encoder", "decoder"):
        graph = onnx.load(folder / model[part]["filename"], load_external_data=False).graph
        for side, values in (("inputs", graph.input), ("outputs", graph.output)):
            named = [n.replace("%d", str(i)) for n in model[part][side].values() for i in (0, 1)]
            assert set(named) == {v.name for v in values}
    speech = json.loads((folder / PROCESSOR).read_text())["feature_extraction"]["sequence"]
    assert model["speech"]["config_filename"] == PROCESSOR
    assert speech[2]["operation"]["attrs"]["n_mel"] == 8


def test_the_weights_are_those_of_the_other_files(folder: Path) -> None:
    for name in (AUDIO, TEXT):
        tensors = onnx.load(folder / name, load_external_data=False).graph.initializer
        inside = [t for t in tensors if not t.external_data]
        assert max(numpy_helper.to_array(t).nbytes for t in inside) < 1024
        places = {e.value for t in tensors for e in t.external_data if e.key == "location"}
        assert places
        assert places <= set(PARTS)


def test_other_graphs_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = library.AutoConfig.from_pretrained(folder)
    encoder, decoder = (folder / part for part in PARTS)
    with pytest.raises(ExportError, match=r"does not append to 'past_key_values\.0\.encoder\.key'"):
        write_speech_files(config, folder, encoder, encoder)
    outputs = genai_files._outputs

    def wrong(path: Path, feed: genai_files.NamedArrays) -> genai_files.NamedArrays:
        found = outputs(path, feed)
        return {k: v + np.float32(path.name == TEXT) for k, v in found.items()}

    monkeypatch.setattr(genai_files, "_outputs", wrong)
    with pytest.raises(VerificationError, match="does not compute what decoder_model_merged"):
        write_speech_files(config, folder, encoder, decoder)
    assert not [name for name in (AUDIO, TEXT) if (folder / name).exists()]
