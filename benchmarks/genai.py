"""Speed of qtool's language models in onnxruntime-genai over those of its own builder.

    python benchmarks/genai.py [--folder MODEL] [--layers 8 --width 1024] [--past 128,1500]

Needs onnxruntime-genai (`pip install onnxruntime-genai`). Without --folder the model is a Llama of
random weights. Both files have 4-bit weights in blocks of 32 and compute at accuracy level 4, one
thread. They run in turns, and each ratio is the median of pairs of one round; times are of the
process, not of the clock, so that a busy machine disturbs them less.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

REPOSITORY = Path(__file__).parents[1]
TOKENIZER = REPOSITORY / "examples/language_model/model"
THREADS = '{"model":{"decoder":{"session_options":{"intra_op_num_threads":1}}}}'
VOCABULARY = 4096


def random_llama(folder: Path, layers: int, width: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 11 // 4 // 128 * 128,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for file in TOKENIZER.glob("tokenizer*"):
        shutil.copy(file, folder)


def build(source: Path, out: Path) -> None:
    """Write the folder of genai's builder."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", source, "-o", out]
    command += ["-p", "int4", "-e", "cpu", "-c", out.with_suffix(".cache")]
    subprocess.run([*command, "--extra_options", "int4_accuracy_level=4"], check=True)


def quantize(source: Path, out: Path, *more: str) -> None:
    """Write qtool's folder; the texts matter for the scales of an int8 cache only."""
    texts = REPOSITORY / "examples/language_model/calibration.txt"
    command = [sys.executable, "-m", "qtool", "quantize", source, "--data", texts]
    command += ["--max-length", "64", "--samples", "4", "--task", "text-generation-with-past"]
    command += ["--mode", "weight-only-int4", "--timing", "0.01", "-o", out / "model.onnx", *more]
    subprocess.run(command, check=True)


def run(library: Any, model: Any, prompt: int, steps: int) -> tuple[float, float]:
    """Return seconds of the prompt and of a step."""
    parameters = library.GeneratorParams(model)
    length = prompt + steps + 1
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
    generator = library.Generator(model, parameters)
    ids = (np.arange(prompt) * 7 % (VOCABULARY - 96) + 5).astype(np.int32)
    start = time.process_time()
    generator.append_tokens(ids)
    middle = time.process_time()
    for _ in range(steps):
        generator.generate_next_token()
    return middle - start, (time.process_time() - middle) / steps


def measure(folders: dict[str, Path], prompt: int, options: argparse.Namespace) -> None:
    """Print prompt and step of each folder, and the ratios to the first."""
    import onnxruntime_genai as library  # type: ignore[import-not-found,unused-ignore]  # optional

    models = {}
    for name, folder in folders.items():
        config = library.Config(str(folder))
        config.overlay(THREADS)
        models[name] = library.Model(config)
    rounds = [
        {name: run(library, model, prompt, options.steps) for name, model in models.items()}
        for _ in range(options.rounds)
    ]
    first = next(iter(folders))
    for name in folders:
        texts = []
        for phase in (0, 1):
            own = statistics.median(r[name][phase] for r in rounds)
            ratio = statistics.median(r[name][phase] / r[first][phase] for r in rounds)
            texts.append(f"{own * 1000:9.2f} ms {ratio:6.3f}x")
        print(f"{prompt:6}  {name:18} prompt {texts[0]}   step {texts[1]}", flush=True)


def describe(name: str, folder: Path) -> None:
    nodes = len(onnx.load(folder / "model.onnx", load_external_data=False).graph.node)
    size = sum(file.stat().st_size for file in folder.glob("model.onnx*"))
    search = json.loads((folder / "genai_config.json").read_text())["search"]
    shared = search["past_present_share_buffer"]
    print(f"{name:18} {nodes} nodes, {size / 2**20:.1f} MiB, cache in place: {shared}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="of a model of transformers")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--past", default="128,1500", help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        work = Path(name)
        source = options.folder or work / "model"
        if options.folder is None:
            random_llama(source, options.layers, options.width)
        folders = {form: work / form for form in ("builder", "qtool", "qtool, int8 cache")}
        build(source, folders["builder"])
        quantize(source, folders["qtool"])
        quantize(source, folders["qtool, int8 cache"], "--cache", "int8")
        for form, folder in folders.items():
            describe(form, folder)
        for prompt in map(int, options.past.split(",")):
            measure(folders, prompt, options)


if __name__ == "__main__":
    main()
