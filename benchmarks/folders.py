"""Model folders of transformers, each converted by one command.

    python benchmarks/folders.py [--only 'bert;llama, int4']
    python benchmarks/folders.py --minilm FOLDER

Models of transformers with small configurations and random weights, and data made here: texts of
examples/language_model, images and sound of smooth noise. Each row is one run of `qtool` in a
process of its own, on a folder and nothing else. `--minilm`: the pretrained all-MiniLM-L6-v2,
written into a folder and converted from 256 sentences of STS-B; what is judged are the embeddings
that the README's table judges, on the other ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import networks
import numpy as np
import onnxruntime
import torch

ROOT = Path(__file__).parents[1]
TEXTS = ROOT / "examples" / "language_model" / "calibration.txt"
COUNT, WORDS = 32, 2000
RATE, PIXELS = 16000, 64

WIDE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
FULL = {**WIDE, "intermediate_size": 256}
DECODER = {**FULL, "num_key_value_heads": 2, "max_position_embeddings": 512}
T5 = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
HALF = {"layers": 2, "attention_heads": 4, "ffn_dim": 256}
WHISPER = {
    **{f"{half}_{name}": size for half in ("encoder", "decoder") for name, size in HALF.items()},
    "d_model": 128,
    "max_source_positions": 100,
    "vocab_size": WORDS,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# --- what a person would have ---------------------------------------------------------------------


def _tokenizer(library: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    pad, unknown, end = special = ["[PAD]", "[UNK]", "[SEP]"]
    made = Tokenizer(models.BPE(unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.train([str(TEXTS)], trainers.BpeTrainer(vocab_size=WORDS, special_tokens=special))
    names = {"pad_token": pad, "unk_token": unknown, "eos_token": end}
    return library.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def _texts(folder: Path) -> Path:
    words = TEXTS.read_text().split()
    lines = [" ".join(words[i * 40 : i * 40 + 8 + i]) for i in range(COUNT)]
    rows = [{"text": text, "target": text[: len(text) // 2]} for text in lines]
    return _written(folder / "texts.jsonl", rows)


def _written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _captions(folder: Path, ending: str) -> None:
    words = TEXTS.read_text().split()
    texts = [" ".join(words[i : i + 9]) for i in range(COUNT)]
    rows = [{"file_name": f"{i}.{ending}", "text": text} for i, text in enumerate(texts)]
    _written(folder / "metadata.jsonl", rows)


def _images(folder: Path) -> Path:
    from PIL import Image

    (home := folder / "images").mkdir()
    draw = np.random.default_rng(0)
    for i in range(COUNT):
        coarse = Image.fromarray(draw.integers(0, 255, (9, 9, 3), dtype=np.uint8))
        coarse.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC).save(home / f"{i}.png")
    _captions(home, "png")
    return home


def _sounds(folder: Path) -> Path:
    (home := folder / "sounds").mkdir()
    draw = np.random.default_rng(0)
    for i in range(COUNT):
        values = np.convolve(draw.normal(size=RATE), np.hanning(8 + i), "same") * 1500
        with wave.open(str(home / f"{i}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(values.clip(-32768, 32767).astype("<i2").tobytes())
    _captions(home, "wav")
    return home


def _vision(library: Any) -> Any:
    size = {"height": PIXELS, "width": PIXELS}
    return library.ViTImageProcessor(size=size)


def _clip(library: Any) -> list[Any]:
    sizes = {**FULL, "projection_dim": 64}
    text = {**sizes, "vocab_size": WORDS, "eos_token_id": 2, "max_position_embeddings": 77}
    vision = {**sizes, "image_size": PIXELS, "patch_size": 16}
    config = library.CLIPConfig(text_config=text, vision_config=vision, projection_dim=64)
    crop = {"height": PIXELS, "width": PIXELS}
    images = library.CLIPImageProcessor(size={"shortest_edge": PIXELS}, crop_size=crop)
    return [library.CLIPModel(config), images, _tokenizer(library)]


Made = Callable[[Any], list[Any]]


def _of(name: str, config: Mapping[str, Any], beside: Callable[[Any], Any] = _tokenizer) -> Made:
    """A model class of transformers by name, of its own configuration class."""

    def make(library: Any) -> list[Any]:
        kind = getattr(library, name)
        return [kind(kind.config_class(**config)), beside(library)]

    return make


def _speech(library: Any) -> list[Any]:
    heard = library.WhisperFeatureExtractor(chunk_length=2)
    return [*_of("WhisperForConditionalGeneration", WHISPER)(library), heard]


LM, STEP = "text-generation-with-past", "weight-only-int4"
DISTIL = {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256, "vocab_size": WORDS}
BERT: Made = _of("BertForSequenceClassification", {**FULL, "vocab_size": WORDS})
LLAMA: Made = _of("LlamaForCausalLM", {**DECODER, "vocab_size": WORDS})
QWEN: Made = _of("Qwen3ForCausalLM", {**DECODER, "vocab_size": WORDS, "head_dim": 32})
T5_MODEL: Made = _of(
    "T5ForConditionalGeneration", {**T5, "vocab_size": WORDS, "decoder_start_token_id": 0}
)
VIT: Made = _of(
    "ViTForImageClassification", {**FULL, "image_size": PIXELS, "patch_size": 16}, _vision
)

ROWS: dict[str, tuple[Made, Callable[[Path], Path], list[str]]] = {
    "bert": (BERT, _texts, []),
    "distilbert": (_of("DistilBertForSequenceClassification", DISTIL), _texts, []),
    "vit": (VIT, _images, []),
    "clip": (_clip, _images, []),
    "whisper": (_speech, _sounds, []),
    "whisper-encoder": (_speech, _sounds, ["--task", "automatic-speech-recognition-encoder"]),
    "whisper-decoder": (_speech, _sounds, ["--task", "automatic-speech-recognition-decoder"]),
    "t5": (T5_MODEL, _texts, []),
    "t5-encoder": (T5_MODEL, _texts, ["--task", "text2text-generation-encoder"]),
    "t5-decoder": (T5_MODEL, _texts, ["--task", "text2text-generation-decoder"]),
    "llama": (LLAMA, _texts, []),
    "llama, int4": (LLAMA, _texts, ["--task", LM, "--mode", STEP]),
    "qwen": (QWEN, _texts, []),
    "qwen, int4": (QWEN, _texts, ["--task", LM, "--mode", STEP]),
}


# --- one command each -----------------------------------------------------------------------------


def convert(model: Path, data: Path, more: list[str], out: Path) -> tuple[list[str], dict]:
    """The command, and what it says; of one that fails, its error."""
    line = ["qtool", "quantize", str(model), "--data", str(data), "-o", str(out), *more]
    asked = [*line, "--timing", "0", "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    try:
        return line, json.loads(done.stdout)
    except json.JSONDecodeError:
        return line, {"error": {"what": done.stderr[-300:]}}


def _cells(said: dict) -> list[str]:
    if "error" in said:
        return ["failed", json.dumps(said["error"])]
    exact, accuracy = said["exactness"] or {}, said["accuracy"] or {}
    same = f"{exact.get('identical')} of {exact.get('elements')}" if exact else "not compared"
    sqnr = [v for v in accuracy.get("sqnr", {}).values() if v is not None]
    known = f"{min(sqnr):.1f} to {max(sqnr):.1f}" if sqnr else ""
    coverage = said["coverage"]
    integer = coverage["integer_mac_share"] + coverage["integer_weight_mac_share"]
    return [str(said["parity"]["passed"]), same, f"{100 * integer:.2f}", known]


def _small(options: argparse.Namespace, scratch: Path) -> None:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    data = {make: make(scratch) for make in (_texts, _images, _sounds)}
    print("| folder | verified | elements as predicted | integer % | SQNR dB of outputs |")
    for name in options.only.split(";") if options.only else ROWS:
        make, kind, more = ROWS[name]
        torch.manual_seed(0)
        folder = scratch / name.replace(", ", "-")
        for part in make(transformers):
            part.save_pretrained(folder)
        _, said = convert(folder, data[kind], more, scratch / "out" / f"{folder.name}.onnx")
        print(f"| {name} | " + " | ".join(_cells(said)) + " |", flush=True)


def _pretrained(home: Path, scratch: Path) -> None:
    """all-MiniLM-L6-v2 from a folder: the embeddings of its file, over all pairs of STS-B dev."""
    network = networks.load(home, "minilm")
    import minilm  # of that folder; `load` has found it

    _, tokenizer = minilm.load("sdpa")
    network.model.bert.save_pretrained(scratch / "MiniLM")
    tokenizer.save_pretrained(scratch / "MiniLM")
    rows = minilm.sts("dev")
    sentences = [r[0] for r in rows] + [r[1] for r in rows]
    count = 2 * networks.PAIRS
    few = [{"text": t} for t in sentences[:: len(sentences) // count][:count]]
    texts, out = _written(scratch / "sentences.jsonl", few), scratch / "minilm.onnx"
    line, said = convert(scratch / "MiniLM", texts, [], out)
    print(" ".join(line), _cells(said), flush=True)
    session = onnxruntime.InferenceSession(out)
    names = [i.name for i in session.get_inputs()]

    def embed(ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        states = session.run(None, {n: given[n].numpy() for n in names})[0]
        weight = mask.numpy()[:, :, None].astype(np.float32)
        means = (states * weight).sum(1) / weight.sum(1)
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    def exact(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return network.model(input_ids=ids, attention_mask=mask)

    one, two = (minilm.embed(fn, tokenizer, sentences) for fn in (exact, embed))
    sqnr = 10 * np.log10((one**2).sum() / ((one - two) ** 2).sum())
    score = minilm.sts_score(embed, tokenizer, "dev")
    print(f"embeddings {sqnr:.2f} dB, 100 x Spearman {score:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows, with ; between them")
    parser.add_argument("--minilm", type=Path, help="a folder as networks.py takes it")
    options = parser.parse_args()
    networks.let_torchvision_import()
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "out").mkdir()
        if options.minilm:
            _pretrained(options.minilm, scratch)
        else:
            _small(options, scratch)


if __name__ == "__main__":
    main()
