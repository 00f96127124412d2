"""The Python API for data: `load_data`. It needs no torch for files of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qtool.core.hub_cache import local_model
from qtool.core.label_names import check_label_array
from qtool.core.numpy_files import SUFFIXES, NumpyFiles, has_arrays
from qtool.core.torch_package import has_torch, torch_error


def load_data(
    source: str | Path,
    batch_size: int = 32,
    *,
    model: Any = None,
    folder: str | Path | None = None,
    model_folder: str | Path | None = None,
    transform: str | None = None,
    max_length: int | None = None,
    padded: bool = False,
    unreadable: float = 0.0,
    without: tuple[str, ...] = (),
    samples: int | None = None,
    stride: int | None = None,
    classes: str | Sequence[str] | None = None,
    states: Mapping[str, str] | str | None = None,
    column: str | Sequence[str] | None = None,
    labels: str | None = None,
) -> Iterable[Any]:
    """Load batches from a data source: of tensors, where torch is not installed of arrays.

    Without torch it reads .npy and .npz files and folders of them.

    Texts of one batch have equal lengths, so that there is no padding; `Rows.rows` and
    `Rows.labels` have the order of the samples.

    Args:
        source: `package.module:function` (or a call of it with literals) that returns an iterable
            of batches; a .npy or .npz file or a folder of them; a folder of images or sounds, with
            or without a subfolder per class; a .txt file with one text per line; a .csv, .tsv,
            .parquet, .json or .jsonl file, of numbers or of texts; a folder that
            `Dataset.save_to_disk` wrote.
        batch_size: samples per batch.
        model: the model that takes the batches, if it is loaded.
        folder: a local folder with a tokenizer, image processor or feature extractor, or the hub
            id of one in the local Hugging Face cache.
        model_folder: the folder to take in place of `folder` where the data needs one.
        transform: preprocessing of images or sounds: `package.module:function`, the name of
            torchvision's weights ("ResNet18_Weights.DEFAULT"), or "timm" for those of the model.
        max_length: most tokens of a text.
        padded: pad every text to `max_length`.
        unreadable: share of images or sounds that may be unreadable and are skipped.
        without: names of arrays that are not inputs.
        samples: number of samples to use: of files and folders evenly spaced ones, of a function's
            batches the first ones. By default all.
        stride: read a .txt file as one text, in windows of `max_length` tokens that begin `stride`
            tokens apart. By default each line is a text.
        classes: names of the classes in the order of the model's outputs, where labels are names
            (of folders, or in a file): a list, names separated by commas, or a file with one per
            line. By default classes.txt in the folder, else as for `class_numbers`.
        states: the source has recordings for a recurrent `model`: each file of arrays, or batch of
            a function, has a row per step. Output -> input, or "auto"; see `unroll_recordings`.
        column: names of the columns of a table to use, a list or separated by commas: of numbers,
            or of a text, of two texts or a conversation. By default texts in columns with usual
            names, else all numbers.
        labels: name of the column, or of the array, that has labels, or numbers to predict; batches
            of a table have them as `labels`. By default a column of a usual name.

    Raises:
        DataError: there is no data, it cannot be read, there is no preprocessing for it, or an
            argument does nothing for such data. OptionError: a number is out of its range.
        InstallError: other data or another argument than files of arrays take, without torch.
    """
    options = {
        "model": model,
        "folder": None if folder is None else local_model(str(folder)),
        "model_folder": model_folder,
        "transform": transform,
        "max_length": max_length,
        "padded": padded,
        "unreadable": unreadable,
        "stride": stride,
        "classes": classes,
        "states": states,
        "column": column,
    }
    if has_torch():
        from qtool.frontends.data import load_data as readers

        return readers.load_data(
            source, batch_size, without=without, samples=samples, labels=labels, **options
        )
    path = Path(source)
    if path.suffix not in SUFFIXES and not has_arrays(path):
        raise torch_error(
            f"{source} is neither a .npy or .npz file nor a folder of them; other data"
        )
    if (other := next((name for name, value in options.items() if value), None)) is not None:
        raise torch_error(f"{other} of load_data")
    without = without if labels is None else (*without, labels)
    files = NumpyFiles(path, batch_size, without, samples)
    files.files()
    if labels is not None:
        check_label_array(files, labels)
    return files
