"""Text generation with the file of a decoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from qtool.backends.onnxruntime.cached_decoder import CachedDecoder
from qtool.core.errors import DataError, FileError, OptionError, errors_as, missing
from qtool.core.option_records import keywords_of
from qtool.core.path_arguments import model_file
from qtool.core.paths import is_file
from qtool.evaluation import generation
from qtool.evaluation.generation import Generation, context_size, end_tokens
from qtool.evaluation.options import GenerationKeywords, GenerationOptions
from qtool.frontends.data.processors import load_tokenizer
from qtool.frontends.huggingface.folder_layout import model_folder_of
from qtool.frontends.huggingface.model_folder import WITH_PAST
from qtool.frontends.load_model import load_model

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ENDS = ("generation_config.json", "config.json")
_SIZES = ("config.json", "genai_config.json")

_T = TypeVar("_T")


@keywords_of(GenerationOptions)
def generate(
    file: str | Path,
    prompt: str,
    *,
    model: str | Path | None = None,
    tokenizer: str | Path | None = None,
    on_text: Callable[[str], object] | None = None,
    **keywords: Unpack[GenerationKeywords],
) -> Generation:
    """Continue a prompt with the ONNX file of a language model that has its KV cache as inputs.

    Args:
        file: the file.
        prompt: a text.
        model: folder of the float model, to count the tokens that it finds most likely, too; only
            where the most likely token is taken.
        tokenizer: folder with the tokenizer; by default that of the file, or the one above "onnx".
        on_text: is called with each piece of the new text; None: nothing is.
        keywords: the fields of `GenerationOptions`, which explains them: tokens, temperature,
            top_k, top_p, seed and threads.

    Raises:
        DataError: the file has no KV cache, the folder no tokenizer, or the prompt no tokens, or
            as many as the model's context.
        FileError: there is no such file.
        OptionError: a number is out of its range, or `model` is combined with a temperature.
        VerificationError: ONNX Runtime refuses the file.
    """
    options = GenerationOptions(**keywords)
    if model is not None and options.temperature:
        raise OptionError("a float model is compared with the most likely tokens; temperature is 0")
    file = model_file(file)
    if not is_file(file):
        raise missing(file, FileError)
    folder = model_folder_of(file) if tokenizer is None else Path(tokenizer)
    try:
        loaded = load_tokenizer(folder)
    except DataError:
        CachedDecoder(file, 1)  # that the file is no language model comes first
        raise
    result = generation.generate(
        file,
        prompt,
        loaded,
        options,
        ends=_read_first(folder, _ENDS, end_tokens) or frozenset(),
        context=_read_first(folder, _SIZES, context_size),
        on_text=on_text,
    )
    if model is None:
        return result
    return replace(
        result, agreement=_equal_tokens(model, loaded(prompt)["input_ids"], result.tokens)
    )


def _read_first(folder: Path, names: Sequence[str], read: Callable[[Any], _T]) -> _T | None:
    """Return what a function reads from the first of these configurations in a folder; None without
    one.

    Raises:
        DataError: it is no configuration.
    """
    for path in (folder / name for name in names):
        if is_file(path):
            known = (OSError, ValueError, RecursionError)
            with errors_as(DataError, f"{path} is no configuration of a model", of=known):
                return read(json.loads(path.read_text("utf-8")))
    return None


@torch.no_grad()
def _equal_tokens(model: str | Path, prompt: list[int], tokens: tuple[int, ...]) -> int:
    """Return how many tokens the float model finds most likely behind those before them."""
    decoder: Any = load_model(model, task=WITH_PAST, attention="masked")
    ids = torch.tensor([[*prompt, *tokens[:-1]]])
    logits = decoder(ids, torch.ones_like(ids), ())["logits"][0, len(prompt) - 1 :]
    return int((logits.argmax(-1) == torch.tensor(tokens)).sum())
