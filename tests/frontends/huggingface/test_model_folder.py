"""Folders as transformers and timm write them, with small models of random weights."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from qtool.cli import main
from torch import nn

from qtool import capture_model
from qtool.api.data import load_data
from qtool.core.errors import CaptureError, DataError
from qtool.frontends.huggingface.meta_init import load_without_weights, stored_names
from qtool.frontends.huggingface.safetensors_files import WeightFiles
from qtool.frontends.load_model import load_model
from tests.core.test_hub_cache import cached
from tests.frontends.conftest import TEXTS, save_lines

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("transformers")


def tokenizer(library: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = dict.fromkeys(" ".join(TEXTS).split())
    table = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[SEP]", *words])}
    made = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return library.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]"
    )


@pytest.fixture(scope="module")
def bert(library: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    words = tokenizer(library)
    torch.manual_seed(0)
    config = library.BertConfig(vocab_size=len(words), **SMALL)
    library.BertForSequenceClassification(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def t5(library: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    words = tokenizer(library)
    torch.manual_seed(0)
    config = library.T5Config(
        vocab_size=len(words), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2
    )
    config.decoder_start_token_id = 0
    library.T5ForConditionalGeneration(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def test_a_task_of_ones_own(bert: Path) -> None:
    assert type(load_model(bert, task="feature-extraction")).__name__ == "BertModel"
    with pytest.raises(CaptureError, match=r"has no weights for BertForMaskedLM \(missing: cls"):
        load_model(bert, task="fill-mask")
    with pytest.raises(CaptureError, match="unknown task 'singing'; there are: audio-class"):
        load_model(bert, task="singing")


def test_an_encoder_without_a_pooler(library: Any, tmp_path: Path) -> None:
    """As folders of encoders are whose states somebody else pools."""
    config = library.BertConfig(vocab_size=9, **SMALL)
    library.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.pooler is None
    empty = load_without_weights(tmp_path)
    assert set(stored_names(empty, WeightFiles(tmp_path))) == set(model.state_dict())
    with pytest.raises(CaptureError, match="has no weights for BertForSequenceClassification"):
        load_model(tmp_path, task="text-classification")


@pytest.mark.matrix
def test_a_mixture_of_experts_has_a_graph(library: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = library.MixtralConfig(
        **{**SMALL, "num_key_value_heads": 2}, vocab_size=9, num_local_experts=4
    )
    library.MixtralForCausalLM(config).save_pretrained(tmp_path)
    given = {"input_ids": torch.tensor([[1, 2, 3]])}
    exact = load_model(tmp_path)(**given).logits
    graph = capture_model(load_model(tmp_path), given).graph
    assert torch.allclose(graph.module(**given)["logits"], exact, atol=1e-5)
    files = WeightFiles(tmp_path)
    names = stored_names(load_without_weights(tmp_path), files)
    state = load_model(tmp_path).state_dict()
    assert names.keys() == state.keys()
    for name, stored in names.items():
        assert torch.equal(files.read(stored), state[name])
        if state[name].dim() == 3:  # a stack
            part = slice(1, 3), slice(2, 5)
            assert torch.equal(files.read(stored, part), state[name][part])


def test_texts_with_the_folders_tokenizer(bert: Path, texts: Path) -> None:
    data = load_data(texts, 2, model=load_model(bert), folder=bert)
    assert {"input_ids", "attention_mask"} <= next(iter(data)).keys()
    shapes = [tuple(b["input_ids"].shape) for b in data]
    assert shapes == [(2, 5), (1, 7), (1, 9), (1, 6), (1, 5)], "the largest first, then in order"
    assert all(b["attention_mask"].all() for b in data), "nothing is padded"
    assert sorted(row.text for row in data.rows) == sorted(TEXTS)
    assert data.dynamic["input_ids"] == {0: "batch", 1: "sequence"}
    short = load_data(texts, 4, model=load_model(bert), folder=bert, max_length=12, padded=True)
    assert {b["input_ids"].shape[1] for b in short} == {12}
    assert short.dynamic["input_ids"] == {0: "batch"}


def test_labels_stand_as_the_texts_do(bert: Path, tmp_path: Path) -> None:
    rows = [{"text": text, "label": len(text.split())} for text in TEXTS]
    data = load_data(save_lines(tmp_path / "rows.jsonl", rows), 2, folder=bert)
    assert data.labels.tolist() == [b["input_ids"].shape[1] for b in data for _ in b["input_ids"]]


def test_lengths_that_no_graph_begins_with(bert: Path, tmp_path: Path) -> None:
    """A size of 1 is a constant for torch.export, one of 0 is nothing."""
    rows = [{"text": text} for text in ("cat", "dog", "mat", "", "a dog barks")]
    data = load_data(save_lines(tmp_path / "rows.jsonl", rows), folder=bert)
    assert [tuple(b["input_ids"].shape) for b in data] == [(1, 3), (4, 1)]


def test_a_decoder_is_given_what_it_is_to_say(t5: Path, texts: Path) -> None:
    model = load_model(t5)
    first = next(iter(load_data(texts, 4, model=model, folder=t5)))
    assert torch.equal(first["decoder_input_ids"][:, 1:], first["input_ids"][:, :-1])
    assert not first["decoder_input_ids"][:, 0].any()
    assert "past_key_values" not in model(**first), "no cache"


def test_captions_of_no_use_ask_for_no_tokenizer(
    library: Any, captioned: Path, tmp_path: Path
) -> None:
    sizes = {"image_size": 16, "patch_size": 8}
    model = library.ViTForImageClassification(library.ViTConfig(**SMALL, **sizes))
    library.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    data = load_data(captioned, 4, model=model, folder=tmp_path)
    assert [{k: tuple(v.shape) for k, v in b.items()} for b in data] == [
        {"pixel_values": (4, 3, 16, 16)},
        {"pixel_values": (2, 3, 16, 16)},
    ]


def test_a_tokenizer_of_another_model(library: Any, bert: Path, texts: Path) -> None:
    small = library.BertForSequenceClassification(library.BertConfig(vocab_size=7, **SMALL))
    with pytest.raises(
        DataError, match=r"tokens, the model takes 7; give the model's own tokenizer"
    ):
        load_data(texts, model=small, folder=bert)


def _edited(folder: Path, to: Path, **changes: Any) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **changes}))
    return to


def test_code_in_a_folder_is_not_run(bert: Path, tmp_path: Path) -> None:
    mapped = {"AutoModel": "modeling_mine.Mine"}
    folder = _edited(bert, tmp_path, architectures=["Mine"], auto_map=mapped)
    (folder / "modeling_mine.py").write_text("raise SystemExit(99)")
    with pytest.raises(
        CaptureError, match=r"needs code that is not part of transformers .*runs no code"
    ):
        load_model(folder)


@pytest.mark.parametrize("name", ["Trainer", "pipeline", "utils", "AutoModel", "BertConfig", "a.b"])
def test_an_architecture_that_is_no_model(name: str, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"is not part of transformers"):
        load_model(_edited(bert, tmp_path, architectures=[name]))


@pytest.mark.parametrize("place", ["/elsewhere/w.safetensors", "../w.safetensors", "a\\\\w", ".."])
def test_weights_outside_of_the_folder(place: str, bert: Path, tmp_path: Path) -> None:
    folder = _edited(bert, tmp_path)
    (folder / "model.safetensors").rename(folder / "w.safetensors")
    index = {"weight_map": {"embeddings.word_embeddings.weight": place}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for read in (load_model, WeightFiles):
        with pytest.raises(CaptureError, match="give names of files in the same folder"):
            read(folder)


@pytest.mark.parametrize("read", [load_model, load_without_weights])
def test_more_layers_than_weights(read: Callable[[Path], Any], bert: Path, tmp_path: Path) -> None:
    folder = _edited(bert, tmp_path, num_hidden_layers=2**63)
    with pytest.raises(CaptureError, match=r"9,223,372,036,854,775,808 layers \(num_hidden_layers"):
        read(folder)


def test_a_length_that_is_no_number(bert: Path, texts: Path, tmp_path: Path) -> None:
    folder = _edited(bert, tmp_path)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": "x"}))
    with pytest.raises(DataError, match=r"model_max_length in .* is 'x', no whole number"):
        load_data(texts, folder=folder)
    _edited(bert, tmp_path, decoder_start_token_id="y")
    with pytest.raises(DataError, match=r"decoder_start_token_id in .* is 'y', no whole number"):
        load_data(texts, folder=folder)


def test_weights_are_not_unpickled(bert: Path, tmp_path: Path) -> None:
    folder = _edited(bert, tmp_path)
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CaptureError, match="has no weights in safetensors"):
        load_model(folder)


def test_a_folder_of_timm_is_built_as_it_says_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def create_model(name: str, **options: Any) -> nn.Module:
        asked.update(options, name=name)
        return nn.Identity()

    library = ModuleType("timm")
    vars(library).update(
        __version__="1", create_model=create_model, is_model=lambda name: name == "resnet10t"
    )
    monkeypatch.setitem(sys.modules, "timm", library)
    (tmp_path / "model.safetensors").write_bytes(bytes(9))
    inner = {"num_classes": 3, "in_chans": 1, "pretrained": True, "checkpoint_path": "a.pth"}
    config = {"architecture": "resnet10t", "num_classes": 3, "model_args": inner}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not load_model(str(tmp_path)).training
    own = {"pretrained": False, "checkpoint_path": str(tmp_path / "model.safetensors")}
    assert asked == {"name": "resnet10t", "num_classes": 3, "in_chans": 1, **own}

    (tmp_path / "config.json").write_text(json.dumps({**config, "architecture": "hf-hub:a/b"}))
    with pytest.raises(CaptureError, match="timm 1 does not know 'hf-hub:a/b'"):
        load_model(str(tmp_path))


def test_a_hub_id_is_read_from_the_local_cache(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cached(tmp_path, "acme/tiny", "f00", *bert.iterdir())
    model, expected = load_model("acme/tiny"), load_model(bert)
    assert isinstance(model, nn.Module)
    assert isinstance(expected, nn.Module)
    weights = expected.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    with pytest.raises(CaptureError, match=r"'acme/no' is no model of.*`hf download` gets one"):
        load_model("acme/no")


def test_a_command_takes_a_hub_id(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cached(tmp_path, "acme/tiny", "f00", *bert.iterdir())
    out = tmp_path / "out"
    line = f"quantize acme/tiny --mode weight-only --accuracy fast --seconds 0 -o {out}"
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 0, result.output
    assert "acme/tiny is read from the Hugging Face cache, revision f00" in result.output
