"""Loads a folder with a library and prints what it computes, as JSON.

    python python_consumers.py optimum|sentence-transformers|genai FOLDER <<< '{"class": ...}'

A program of its own, since Optimum needs an older transformers than qtool.
"""

import json
import sys
from typing import Any


def optimum(folder: str, given: dict[str, Any]) -> Any:
    """The logits of `ids`, or the tokens behind `ids` or `features`."""
    import torch
    from optimum import onnxruntime

    model = getattr(onnxruntime, given["class"]).from_pretrained(folder)
    if "features" in given:
        inputs = {"input_features": torch.tensor(given["features"])}
    else:
        ids = torch.tensor([given["ids"]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "tokens" not in given:
        inputs["token_type_ids"] = torch.zeros_like(ids)
        return model(**inputs).logits[0].tolist()
    greedy = {"max_new_tokens": given["tokens"], "do_sample": False, "num_beams": 1}
    return model.generate(**inputs, **greedy)[0].tolist()


def sentences(folder: str, given: dict[str, Any]) -> Any:
    """The embedding of each text."""
    from sentence_transformers import SentenceTransformer

    named = {"model_kwargs": {"file_name": given["file"]}} if "file" in given else {}
    model = SentenceTransformer(folder, backend="onnx", local_files_only=True, **named)
    return [model.encode([t], normalize_embeddings=True)[0].tolist() for t in given["texts"]]


def genai(folder: str, given: dict[str, Any]) -> Any:
    """The tokens behind `ids`, of Whisper also behind `features`."""
    import numpy as np
    import onnxruntime_genai as library

    model = library.Model(folder)
    parameters = library.GeneratorParams(model)
    length = len(given["ids"]) + given["tokens"]
    parameters.set_search_options(max_length=length, do_sample=False)
    generator = library.Generator(model, parameters)
    if "features" in given:
        generator.set_model_input("input_features", np.array(given["features"], np.float32))
    generator.append_tokens(np.array(given["ids"], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return list(map(int, generator.get_sequence(0)[len(given["ids"]) :]))


RUNS = {"optimum": optimum, "sentence-transformers": sentences, "genai": genai}

if __name__ == "__main__":
    print(json.dumps(RUNS[sys.argv[1]](sys.argv[2], json.load(sys.stdin))))
