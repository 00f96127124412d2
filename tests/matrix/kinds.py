"""The kinds of models of the matrix: those of the examples, and tiny ones made here."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WORDS = [
    *("the", "cat", "sat", "on", "a", "mat", "and", "saw", "two"),
    *("dogs", "run", "after", "one", "small", "red", "ball", "today"),
]
TEXTS = [" ".join(np.roll(WORDS, -i)[: 6 + i % 4]) for i in range(8)]
SAMPLES = "2"


@dataclass(frozen=True)
class Kind:
    """A model with its data, as arguments of commands.

    Attributes:
        model: MODEL.
        data: value of --data.
        loading: options that load MODEL.
        reading: options that read --data.
        labels: options with labels for --data.
        processor: options with which a command without MODEL reads --data.
        target: options of the target.
        suffix: of its files.
    """

    model: str
    data: str
    loading: tuple[str, ...] = ()
    reading: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    processor: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    suffix: str = ".onnx"


def lstm() -> nn.Module:
    """Return the model of the kind "lstm", always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LastState().eval()


class LastState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return scores


def _digits(folder: Path) -> Kind:
    data = str(EXAMPLES / "digits" / "eval.npz")
    weights = ("--weights", str(EXAMPLES / "digits" / "weights.safetensors"))
    return Kind("examples.digits.network:digits_net", data, weights, labels=("--labels", "labels"))


def _tflite(folder: Path) -> Kind:
    return replace(_digits(folder), target=("--target", "tflite"), suffix=".tflite")


def _detector(folder: Path) -> Kind:
    weights = ("--weights", str(EXAMPLES / "detector" / "weights.safetensors"))
    return Kind("examples.detector.network:detector", "tests.matrix.kinds:scenes", weights)


def scenes() -> list[torch.Tensor]:
    """Return two batches of the detector's scenes."""
    from examples.detector.scenes import calibration

    return [batch[:2] for batch in calibration()[:2]]


def _encoder(folder: Path) -> Kind:
    model = str(EXAMPLES / "sentence_encoder" / "model")
    data = str(EXAMPLES / "sentence_encoder" / "evaluation.txt")
    return Kind(model, data, processor=("--processor", model))


def _decoder(folder: Path, task: str = "text-generation") -> Kind:
    model = folder / "llama"
    save_llama(model)
    own, data, short = str(model), str(model / "texts.txt"), ("--max-length", "12")
    return Kind(own, data, ("--task", task), short, processor=("--processor", own))


def save_llama(folder: Path) -> None:
    """Write a folder of transformers with a decoder of one layer, and texts."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(vocab_size=save_tokenizer(folder), **sizes, **heads)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "texts.txt").write_text("\n".join(TEXTS))


def _decoder_with_cache(folder: Path) -> Kind:
    return _decoder(folder, "text-generation-with-past")


def _classifier(folder: Path) -> Kind:
    import transformers

    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = folder / "bert"
    torch.manual_seed(0)
    vocabulary = save_tokenizer(model)
    config = transformers.BertConfig(vocab_size=vocabulary, num_attention_heads=2, **size)
    transformers.BertForSequenceClassification(config).save_pretrained(model)
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(TEXTS)]
    data = folder / "texts.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    return Kind(str(model), str(data), processor=("--processor", str(model)))


def _encoder_decoder(folder: Path) -> Kind:
    import transformers

    model = folder / "t5"
    torch.manual_seed(0)
    size = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=save_tokenizer(model), **size)
    config.decoder_start_token_id = 0
    transformers.T5ForConditionalGeneration(config).save_pretrained(model)
    rows = [{"text": text, "target": text} for text in TEXTS]
    data = folder / "pairs.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    task = ("--task", "text2text-generation-decoder")
    return Kind(str(model), str(data), task, processor=("--processor", str(model)))


def save_tokenizer(folder: Path) -> int:
    """Write a tokenizer of WORDS; return the size of its vocabulary."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    table = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[SEP]", *WORDS])}
    words = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[SEP]"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
    fast.save_pretrained(folder)
    return len(table)


def _lstm(folder: Path) -> Kind:
    data = folder / "series.npy"
    np.save(data, np.random.default_rng(0).normal(size=(8, 6, 8)).astype(np.float32))
    return Kind("tests.matrix.kinds:lstm", str(data))


def _onnx_file(folder: Path) -> Kind:
    """A file as other tools write it: made with onnx.helper, with weights in a second file."""
    random, path, data = np.random.default_rng(0), folder / "other.onnx", folder / "images.npy"
    np.save(data, random.normal(size=(8, 3, 8, 8)).astype(np.float32))
    weights = {
        "kernel": random.normal(size=(8, 3, 3, 3)),
        "bias": random.normal(size=8),
        "head": random.normal(size=(8, 5)),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel", "bias"], ["a"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "head"], ["scores"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 8, 8])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 5])
    stored = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "other", [image], [scores], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=True, location="other.data", size_threshold=0)
    return Kind(str(path), str(data))


def _batch_1(folder: Path) -> Kind:
    """A file that takes one sample, as exporters write by default."""
    kind = _onnx_file(folder)
    model = onnx.load(kind.model)
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[0].dim_value = 1
    return _saved(model, kind)


def _kept_part(folder: Path) -> Kind:
    """A file with an operator between its layers that qtool leaves to ONNX Runtime."""
    kind = _onnx_file(folder)
    model = onnx.load(kind.model)
    model.graph.node[1].CopyFrom(helper.make_node("LRN", ["a"], ["b"], size=3))
    return _saved(model, kind)


def _saved(model: onnx.ModelProto, kind: Kind) -> Kind:
    path = str(Path(kind.model).with_name("changed.onnx"))
    onnx.save(model, path)
    return replace(kind, model=path)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "cnn": _digits,
    "detector": _detector,
    "encoder": _encoder,
    "classifier": _classifier,
    "decoder": _decoder,
    "decoder-with-cache": _decoder_with_cache,
    "encoder-decoder": _encoder_decoder,
    "lstm": _lstm,
    "onnx": _onnx_file,
    "tflite": _tflite,
    "batch-1": _batch_1,
    "kept-part": _kept_part,
}
"""Name -> function that makes the files of a kind in a folder."""
