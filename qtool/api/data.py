"""The Python API for data: `load_data`. It needs no torch for files of arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.core.data_options import DataKeywords, DataOptions
from qtool.core.downloads import local_model
from qtool.core.numpy_files import SUFFIXES, NumpyFiles, has_arrays
from qtool.core.option_records import keywords_of
from qtool.core.torch_package import has_torch, torch_error

if TYPE_CHECKING:
    from typing_extensions import Unpack


@keywords_of(DataOptions)
def load_data(
    source: str | Path,
    batch_size: int = 32,
    *,
    model: Any = None,
    model_folder: str | Path | None = None,
    without: tuple[str, ...] = (),
    labels: str | None = None,
    **keywords: Unpack[DataKeywords],
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
        model_folder: the folder of tokenizer and processors where `folder` names none.
        without: names of arrays that are not inputs.
        labels: name of the column, or of the array, that has labels, or numbers to predict; batches
            of a table have them as `labels`. By default a column of a usual name.
        keywords: the fields of `DataOptions`, which explains them: samples, column, states,
            transform, folder, max_length, padded and classes.

    Raises:
        DataError: there is no data, it cannot be read, or there is no preprocessing for it.
        OptionError: a number is out of its range.
        InstallError: other data or another argument than files of arrays take, without torch.

    Example:
        >>> data = qtool.load_data("calib_data/digits", samples=64)
    """
    options = DataOptions(**keywords)
    if options.folder is not None:
        options = replace(options, folder=local_model(str(options.folder)))
    if has_torch():
        from qtool.frontends.data.load_data import load_data as load

        others: dict[str, Any] = {"model": model, "model_folder": model_folder, "without": without}
        return load(source, batch_size, options, labels=labels, **others)
    named = {"model": model, "model_folder": model_folder, **options.chosen()}
    if other := next((name for name in named if named[name] and name != "samples"), ""):
        raise torch_error(f"{other} of load_data")
    return _array_files(Path(source), batch_size, without, labels, options.samples)


def _array_files(
    path: Path, batch_size: int, without: tuple[str, ...], labels: str | None, samples: int | None
) -> NumpyFiles:
    """Return the arrays of files as batches, where torch is not installed."""
    if path.suffix not in SUFFIXES and not has_arrays(path):
        raise torch_error(f"{path} is neither a .npy or .npz file nor a folder of them; other data")
    without = without if labels is None else (*without, labels)
    files = NumpyFiles(path, batch_size, without, samples)
    files.files()
    return files
