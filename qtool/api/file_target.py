"""Where the files of a model go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.api.stored_model import options_in_use
from qtool.core.argument_names import argument
from qtool.core.atomic import check_folders, check_writable
from qtool.core.conversion_options import FileOptions
from qtool.core.errors import FileError, OptionError
from qtool.core.on_use import OnUse
from qtool.core.option_names import (
    FOLDER_LAYOUTS,
    FORMATS,
    MODEL_SUFFIXES,
    TFLITE_SUFFIX,
    file_format,
    suffixes_of,
)
from qtool.core.paths import is_dir
from qtool.core.remedies import Argument, Omission, OtherFile, Remedy
from qtool.frontends.huggingface.folder_layout import SHARED
from qtool.frontends.huggingface.foreign_weights import check_float_weights
from qtool.planning.targets import DEFAULT, target, target_for

if TYPE_CHECKING:
    from qtool.api.model_folder import FolderWriter

# for folders of transformers
_folder_writer = OnUse("qtool.api.model_folder:folder_writer")
_COMPANIONS = "qtool.frontends.huggingface.companion_files"
_is_transformers_folder = OnUse(f"{_COMPANIONS}:is_transformers_folder")
_write_companions = OnUse(f"{_COMPANIONS}:write_companions")

_OF_ANY_FILE = (None, "nchw", "float", "dynamic")
"""Layouts, interfaces and batches that ONNX files have, too."""


def folder_name(source: str | Path | None, output: Path, layout: str | None) -> str | None:
    """Return the name of the layout of the folder to write; None where one file is asked for.

    Args:
        source: the model's folder or file, or `package.module:factory`; None for an object.
        output: path to write.
        layout: as in `FileOptions`.

    Raises:
        FileError: the output cannot be written.
        OptionError: the layout does not suit model or output.
        CaptureError: the model is a GGUF file, an adapter, or quantized already.
    """
    if source is not None:
        check_float_weights(Path(source))
    named, from_folder = layout in FOLDER_LAYOUTS, source is not None and is_dir(source)
    if not named and (output.suffix or not from_folder):
        return None
    option = argument("--layout", layout)
    if source is None or not from_folder:
        raise OptionError(f"{option} is for a folder of transformers", Omission("--layout"))
    if output.suffix in (".onnx", ".tflite"):
        raise OptionError(
            f"{option} is a folder of several files",
            Argument("-o", output.with_suffix(""), "name it, as {}"),
        )
    if output.exists() and not output.is_dir():
        raise FileError(f"cannot write {output}: it is a file", OtherFile("name a folder"))
    if output.exists() and output.samefile(source):
        raise FileError(f"cannot write {output}: it is an input", OtherFile("name another folder"))
    check_folders(output, output.resolve())
    return layout if named else SHARED


@dataclass(frozen=True)
class FileTarget:
    """Where files go.

    Attributes:
        path: path of the file or folder.
        source: see `folder_name`.
        options: how files are written.
        layout: name of the layout of a folder; None for one file.
    """

    path: Path
    source: str | Path | None
    options: FileOptions
    layout: str | None

    @classmethod
    def check(
        cls, path: Path, source: str | Path | None, options: FileOptions, *inputs: Any
    ) -> FileTarget:
        """Return where files go, after checking that they can be written.

        Args:
            path, source, options: see the attributes.
            inputs: paths of other inputs, which are not overwritten.

        Raises:
            FileError: the path cannot be written.
            OptionError: format, suffix and layout do not suit each other.
        """
        layout = folder_name(source, path, options.layout)
        if layout is None:
            suffixes = suffixes_of(file_format(path, options.format))
            check_writable(path, source, *inputs, suffixes=suffixes)
        if (plain := options.float_file) is not None:
            if layout is not None:
                raise OptionError(
                    f"{argument('--float-file')} is written with one file, and {path} is a folder",
                    Argument("-o", "FILE.onnx", "name a file, {}"),
                )
            check_writable(plain, source, path, *inputs, suffixes=suffixes_of("qdq"))
        images = None if options.layout in FOLDER_LAYOUTS else options.layout
        written = file_format(path, options.format)
        if options.external_data and FORMATS.get(written) != MODEL_SUFFIXES:
            raise OptionError(
                f"{path} holds its weights itself", Omission("--external-data", "leave out {}")
            )
        forms = (
            Argument("--layout", images),
            Argument("--interface", options.interface),
            Argument("--batch", options.batch),
        )
        for form in forms:
            if form.value in _OF_ANY_FILE or FORMATS.get(written) != MODEL_SUFFIXES:
                continue
            raise OptionError(
                f"{argument(form.name, form.value)} is for .tflite files, and {path} is an .onnx "
                "file",
                Omission(form.name, "leave it out"),
            )
        return cls(path, source, replace(options, layout=images), layout)

    def target_for(self, name: str | None, default: str = DEFAULT) -> str:
        """Return the name of the target of the files; see `planning.targets.target_for`.

        Raises:
            OptionError: the runtime of the target reads no .onnx files, and this is one.
        """
        chosen = target_for(self.format, name, default)
        if (
            self.path.suffix == MODEL_SUFFIXES[0]
            and TFLITE_SUFFIX[1:] in target(chosen).file.formats
        ):
            raise OptionError(
                f"{self.path} is an .onnx file, and the runtime of {chosen} reads .tflite files",
                Argument("-o", str(self.path.with_suffix(TFLITE_SUFFIX))),
                Omission("--target"),
            )
        return chosen

    def writer(self, parts: Mapping[str, Any]) -> FolderWriter | None:
        """Return a writer for the folder of a model's parts; None where one file is written.

        Raises:
            OptionError: the library of the layout does not load such a model.
        """
        if self.layout is None:
            return None
        assert self.source is not None
        writer: FolderWriter = _folder_writer(self.source, self.path, self.layout, parts)
        return writer

    @property
    def format(self) -> str:
        """Name of the format of the files."""
        return file_format(self.path, self.options.format)

    @property
    def refused_by_blocks(self) -> dict[str, Remedy]:
        """What a block-wise conversion does not have of what is in use -> what to do instead."""
        refused: dict[str, Remedy] = {}
        if self.layout is not None:
            refused["a folder to write"] = Argument("-o", "FILE.onnx", "name a file, {}")
        elif self.format != "qdq":
            leave_out: Remedy = Omission("--format", "leave it out")
            if self.options.format == "qdq":  # the suffix says it
                leave_out = Argument("-o", "FILE.onnx", "write ONNX, {}")
            refused[argument("--format", self.format)] = leave_out
        interface, batch = (v is not None for v in (self.options.interface, self.options.batch))
        refused |= options_in_use({"--float-file": self.options.float_file is not None})
        return refused | options_in_use({"--interface": interface, "--batch": batch})


def write_next_to(source: str | Path | None, model: Any, path: Path) -> tuple[Path, ...]:
    """Write configuration and tokenizer next to the file of a model from a transformers folder.

    Args:
        source: see `folder_name`; nothing is written for others than such folders.
        model: as it was loaded.
        path: the file that was written.

    Returns:
        Files that stayed as they were, since they differ from the model's.
    """
    if source is None or not is_dir(source) or not _is_transformers_folder(Path(source)):
        return ()
    return tuple(_write_companions(model, Path(source), path))
