"""The folder that a command writes for a model of transformers: files, configuration, card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from qtool.cli import sources

from qtool.core.atomic import check_folders
from qtool.core.errors import FileError
from qtool.core.option_names import FOLDER_LAYOUTS
from qtool.core.paths import is_dir
from qtool.core.summary import Summary

if TYPE_CHECKING:
    from qtool.frontends.huggingface.folder_layout import FolderLayout


def folder_name(model: str, output: Path, layout: str | None) -> str | None:
    """Return the name of the layout of the folder to write; None where one file is asked for.

    Args:
        model: value of MODEL.
        output: value of --output.
        layout: value of --layout.

    Raises:
        FileError: the output cannot be written.
        click.BadParameter: the layout does not suit model or output.
    """
    named = layout in FOLDER_LAYOUTS
    if not named and (output.suffix or not is_dir(model)):
        return None
    if not is_dir(model):
        raise click.BadParameter(f"{layout} is for a folder of transformers", param_hint="--layout")
    if output.suffix in (".onnx", ".tflite"):
        raise click.BadParameter(
            f"{layout} is a folder of several files; name it, as {output.with_suffix('')}",
            param_hint="--layout",
        )
    if output.exists() and not output.is_dir():
        raise FileError(f"cannot write {output}: it is a file; name a folder")
    if output.exists() and output.samefile(model):
        raise FileError(f"cannot write {output}: it is an input; name another folder")
    check_folders(output, output.resolve())
    return layout if named else "shared"


@dataclass
class FolderWriter:
    """Writes what lies next to the ONNX files of a folder.

    Attributes:
        source: the model's folder.
        folder: that is written.
        layout: its layout.
        model: as it was loaded.
        files: path in the folder -> what was measured.
        records: path in the folder -> how the file was quantized.
        parts: name of each part -> path of its file.
    """

    source: Path
    folder: Path
    layout: FolderLayout
    model: Any
    files: dict[str, Summary] = field(default_factory=dict)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, Path] = field(default_factory=dict)

    def path(self, part: str, plan: Any) -> Path:
        """Return the path of an ONNX file, whose folder is made.

        Args:
            part: "encoder" or "decoder"; "" for a model of one part.
            plan: of the quantized model.
        """
        path = self.layout.path(self.folder, part, plan.recipe.mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.parts[part] = path
        return path

    def add(self, plan: Any, path: Path, summary: Summary) -> None:
        """Write the other files after an ONNX file.

        Args:
            plan: of the quantized model.
            path: of the ONNX file.
            summary: what was measured.
        """
        from qtool.frontends.huggingface.companion_files import (
            usable_consumers,
            write_card,
            write_companions,
            write_record,
        )
        from qtool.frontends.huggingface.folder_layout import GENAI
        from qtool.frontends.huggingface.genai_files import write_speech_files
        from qtool.frontends.huggingface.model_card import model_card

        mode, name = plan.recipe.mode, path.relative_to(self.folder).as_posix()
        self.files[name] = summary
        self.records[name] = {"mode": mode, "target": plan.target}
        kept = write_companions(self.model, self.source, path, self.layout, self.folder, mode)
        write_record(self.folder, self.records)
        consumers = usable_consumers(self.layout, self.model)
        if GENAI in consumers and {"encoder", "decoder"} <= self.parts.keys():
            config, parts = self.model.config, self.parts
            write_speech_files(config, self.folder, parts["encoder"], parts["decoder"])
        card = model_card(self.source.resolve().name, self.model, self.files, consumers)
        sources.report_kept([*kept, *write_card(self.folder, card)], self.source)


def start_folder(source: str, folder: Path, layout: str, parts: Mapping[str, Any]) -> FolderWriter:
    """Return a writer for the files of a loaded model.

    Raises:
        click.BadParameter: the library of the layout does not load such a model.
    """
    from qtool.frontends.huggingface.consumers import refusal
    from qtool.frontends.huggingface.folder_layout import LAYOUTS

    chosen, model = LAYOUTS[layout], next(iter(parts.values()))
    if len(chosen.consumers) == 1 and (reason := refusal(layout, model)) is not None:
        raise click.BadParameter(
            f"{layout} does not load this model: {reason}", param_hint="--layout"
        )
    return FolderWriter(Path(source), folder, chosen, model)
