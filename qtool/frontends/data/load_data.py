"""Loads data from functions, files and folders, in batches of model inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from qtool.core.argument_names import argument
from qtool.core.atomic import scratch_folder
from qtool.core.data.arguments import Arguments
from qtool.core.data.array_files import ArrayFiles
from qtool.core.data.subset import first_samples
from qtool.core.data_options import DataOptions
from qtool.core.errors import DataError
from qtool.core.file_forms import IMAGES, SOUNDS
from qtool.core.limits import Range
from qtool.core.log import log_note
from qtool.core.numpy_files import SUFFIXES, has_arrays
from qtool.core.on_use import OnUse
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import CallEdit
from qtool.frontends.named_objects import call_user_code, evaluate_call, import_object, is_call

AUTO = "auto"
"""In place of pairs of states: each with the only output of its shape and type."""


_OF_ARRAYS = ("samples", "states")
_EXAMPLE_TEXT = "The weather is fine today, so we walk along the river and look at the boats."

_Reader = Callable[..., Iterable[Any]]
_unroll_recordings: _Reader = OnUse("qtool.frontends.data.recordings:unroll_recordings")
_load_rows: _Reader = OnUse("qtool.frontends.data.row_data:load_rows")


def load_data(
    source: str | Path,
    batch_size: int,
    options: DataOptions,
    *,
    model: Any = None,
    model_folder: str | Path | None = None,
    without: tuple[str, ...] = (),
    labels: str | None = None,
) -> Iterable[Any]:
    """Load batches of tensors; see `qtool.load_data`.

    Args:
        options: how the data is read.
        without: names of arrays that are not inputs.

    Raises:
        DataError: there is no data, it cannot be read, there is no preprocessing for it, or a
            recording is none.
        OptionError: a number is out of its range.
    """
    Range(low=1, whole=True).check("batch_size", batch_size)
    if not isinstance(labels, str | None):
        raise DataError(
            f"labels is a {type(labels).__name__}",
            CallEdit("give the name of a column or array (values go to what evaluates)"),
        )
    path = Path(source)
    named = ":" in str(source) and not (is_file(path) or is_dir(path))
    arrays = not named and (path.suffix in SUFFIXES or has_arrays(path))
    samples, states = options.samples, options.states
    without = without if labels is None else (*without, labels)
    if named or arrays:
        _note_unused(source, options)
    if states is not None:
        if isinstance(states, str) and states != AUTO:
            raise DataError(f"states is {states!r}", CallEdit(f"give output -> input, or {AUTO!r}"))
        recordings = _recordings(source, path, named, arrays, without)
        pairs = None if isinstance(states, str) else states
        return _unroll_recordings(model, recordings, pairs, samples)
    if named:
        code, module = _from_code(str(source)), model if isinstance(model, nn.Module) else None
        return code if samples is None else first_samples(code, samples, module)
    if arrays:
        _note_others(path)
        (files := ArrayFiles(path, batch_size, without, samples)).files()
        return files
    folder_path = None if (own := options.folder or model_folder) is None else Path(own)
    return _load_rows(source, batch_size, options, model, folder_path, labels)


def _note_unused(source: str | Path, options: DataOptions) -> None:
    """Note the options that do nothing for inputs as they are."""
    unused = [f"--{each}" for name, each in options.chosen().items() if name not in _OF_ARRAYS]
    for each in unused:
        log_note(f"{argument(each)} does nothing: {source} has inputs of the model as they are")


def _note_others(path: Path) -> None:
    """Note images and sounds in a folder of arrays, which alone are read."""
    files = path.iterdir() if is_dir(path) else ()
    others = sorted(p.name for p in files if p.suffix.lower() in (*IMAGES, *SOUNDS))
    if others:
        more = f" and {len(others) - 1} more" if others[1:] else ""
        log_note(
            f"{path} has .npy or .npz files, which alone are read: {others[0]}{more} is left out"
        )


def input_names(model: object) -> frozenset[str]:
    """Return the names of the inputs of a model; empty without one."""
    return Arguments.of(model).required if isinstance(model, nn.Module) else frozenset()


def example_texts(model: Any, folder: str | Path) -> Iterable[Any] | None:
    """Return a batch of texts for a model, to capture it and to verify a file; None where the
    folder of the model has no tokenizer."""
    with scratch_folder() as place:
        texts = place / "texts.txt"
        texts.write_text(f"{_EXAMPLE_TEXT}\n" * 2)
        try:
            return load_data(texts, 2, DataOptions(folder=folder), model=model)
        except DataError:
            return None


def _recordings(
    source: str | Path, path: Path, named: bool, arrays: bool, without: tuple[str, ...]
) -> Iterable[Any]:
    """Return the batches of a function, or each file of arrays as a batch."""
    if named:
        return _from_code(str(source))
    if not arrays:
        raise DataError(
            f"{source} has no recordings for {argument('--state')}",
            CallEdit("give .npy or .npz files with a row per step, or package.module:function"),
        )
    return ArrayFiles(path, sys.maxsize, without)


def _from_code(source: str) -> Iterable[Any]:
    if is_call(source):
        data: Iterable[Any] = evaluate_call(source, DataError)
        return data
    data = import_object(source, DataError)
    return call_user_code(data, [], {}, source, DataError) if callable(data) else data
