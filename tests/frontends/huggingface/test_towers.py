"""CLIP and SigLIP as two models: the embeddings of each tower are those of the whole model."""

from pathlib import Path
from typing import Any

import pytest
import torch

import qtool
from qtool.core.remedies import Omission

pytestmark = pytest.mark.matrix  # four conversions of a folder

transformers = pytest.importorskip("transformers")
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
IDS = torch.randint(3, 40, (2, 8), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["CLIP", "Siglip"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    projected = {"projection_dim": 12} if request.param == "CLIP" else {}
    config = getattr(transformers, f"{request.param}Config")(
        text_config={**SIZES, "vocab_size": 40, "max_position_embeddings": 16, "eos_token_id": 2},
        vision_config={**SIZES, "image_size": 16, "patch_size": 8},
        **projected,
    )
    torch.manual_seed(0)
    getattr(transformers, f"{request.param}Model")(config).save_pretrained(tmp_path / "folder")
    return tmp_path / "folder"


@torch.no_grad()
def test_a_tower_has_the_embeddings_of_the_whole(folder: Path) -> None:
    whole = qtool.load_model(folder)
    text = qtool.load_model(folder, task="text-feature-extraction")
    image = qtool.load_model(folder, task="image-feature-extraction")
    scores: Any = whole(input_ids=IDS, pixel_values=PIXELS)
    for name, result in (("text_embeds", text(IDS)), ("image_embeds", image(PIXELS))):
        own = result[name] if name in result else result["pooler_output"]
        own = own / own.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(own, scores[name], rtol=1e-5, atol=1e-6)


def test_a_model_without_towers(tmp_path: Path) -> None:
    config = transformers.BertConfig(**SIZES, vocab_size=40)
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(qtool.CaptureError, match="BertModel has no tower of its own") as caught:
        qtool.load_model(tmp_path, task="text-feature-extraction")
    assert isinstance(caught.value.remedies[0], Omission)
    assert qtool.load_model(tmp_path)


def test_both_towers_in_one_folder(folder: Path, tmp_path: Path) -> None:
    out, quick = tmp_path / "out", qtool.FileOptions(timing=0)
    how = qtool.QuantizeOptions(accuracy="fast")
    for kind, batch in (("text", IDS), ("image", PIXELS)):
        task = f"{kind}-feature-extraction"
        qtool.quantize_to_file(folder, [batch], out, how, quick, task=task)
    names = {path.name for path in (out / "onnx").iterdir()}
    assert names == {"text_model_quantized.onnx", "vision_model_quantized.onnx"}
