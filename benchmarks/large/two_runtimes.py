"""Greedy tokens of a decoder with a cache, in ONNX Runtime and in onnxruntime-genai: equality.

    python benchmarks/large/two_runtimes.py FOLDER [--tokens 64]

FOLDER holds model.onnx and genai_config.json. Needs onnxruntime-genai (`pip install
onnxruntime-genai`), of the version of onnxruntime that is installed. Each runtime goes its own way,
so one token that differs is another text from there on.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

PROMPT = 8
THREADS = '{"model":{"decoder":{"session_options":{"intra_op_num_threads":1}}}}'
Runtime = Callable[[Path, "np.ndarray[Any, Any]"], Iterator[int]]


def in_onnxruntime(folder: Path, prompt: np.ndarray[Any, Any]) -> Iterator[int]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    names = [i.name for i in session.get_inputs()]
    types = {"tensor(float)": np.float32, "tensor(int8)": np.int8}
    past = [
        np.zeros((1, i.shape[1], 0, i.shape[3]), types[i.type]) for i in session.get_inputs()[2:]
    ]
    new, length = prompt[None].astype(np.int64), 0
    while True:
        length += new.shape[1]
        inputs = [new, np.ones((1, length), np.int64), *past]
        logits, *past = session.run(None, dict(zip(names, inputs, strict=True)))
        new = logits[:, -1:].argmax(-1)
        yield int(new.item())


def in_genai(folder: Path, prompt: np.ndarray[Any, Any]) -> Iterator[int]:
    import onnxruntime_genai as library  # type: ignore[import-not-found,unused-ignore]  # optional

    config = library.Config(str(folder))
    config.overlay(THREADS)
    model = library.Model(config)
    parameters = library.GeneratorParams(model)
    parameters.set_search_options(max_length=2048, min_length=2048, do_sample=False)
    generator = library.Generator(model, parameters)
    generator.append_tokens(prompt.astype(np.int32))
    while True:
        generator.generate_next_token()
        yield int(generator.get_sequence(0)[-1])


RUNTIMES: dict[str, Runtime] = {"onnxruntime": in_onnxruntime, "onnxruntime-genai": in_genai}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--words", type=int, default=32000, help="the prompt is drawn among them")
    options = parser.parse_args()
    prompt = np.random.default_rng(0).integers(3, options.words, PROMPT)
    texts: dict[str, list[int]] = {}
    for name, run in RUNTIMES.items():
        start = time.process_time()
        generated = run(options.folder, prompt)
        texts[name] = [next(generated) for _ in range(options.tokens)]
        del generated
        spent = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{name}: {spent:.0f} s of a core, at most {peak:.0f} MiB resident so far")
    one, other = texts.values()
    same = sum(a == b for a, b in zip(one, other, strict=True))
    print(f"{same} of {options.tokens} tokens the same, {len(set(one))} different ones: {one[:8]}")


if __name__ == "__main__":
    main()
