"""The folder that a model of transformers becomes: files and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qtool.api.quantized_file import QuantizedFile
from qtool.core.errors import OptionError
from qtool.core.remedies import Argument
from qtool.frontends.huggingface.companion_files import (
    read_config,
    read_records,
    write_companions,
    write_record,
)
from qtool.frontends.huggingface.consumers import refusal
from qtool.frontends.huggingface.folder_layout import (
    GENAI,
    JS,
    LAYOUTS,
    FolderLayout,
)
from qtool.frontends.huggingface.genai_files import write_speech_files
from qtool.frontends.huggingface.towers import tower_of
from qtool.planning.plan import QuantPlan


@dataclass
class FolderWriter:
    """Writes what lies next to the ONNX files of a folder.

    Attributes:
        source: the model's folder.
        folder: that is written.
        layout: its layout.
        model: as it was loaded.
        records: path in the folder -> how the file was quantized.
        parts: name of each part -> path of its file.
    """

    source: Path
    folder: Path
    layout: FolderLayout
    model: Any
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, Path] = field(default_factory=dict)

    def path(self, part: str, plan: QuantPlan) -> Path:
        """Return the path of an ONNX file, whose folder is made.

        Args:
            part: "encoder" or "decoder"; "" for a model of one part.
            plan: plan of the quantized model.
        """
        tower = tower_of(self.model, read_config(self.source))
        path = self.layout.path(self.folder, part or tower, plan.recipe.mode)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.parts[part] = path
        return path

    def add(self, file: QuantizedFile) -> QuantizedFile:
        """Write the other files after an ONNX file, and return it with `QuantizedFile.kept`."""
        name = file.path.relative_to(self.folder).as_posix()
        self.records.pop(name, None)  # the newest file is the last
        self.records[name] = {"mode": file.mode, "target": file.target}
        kept = write_companions(
            self.model, self.source, file.path, self.layout, self.folder, file.mode
        )
        write_record(self.folder, self.records)
        both = {"encoder", "decoder"} <= self.parts.keys()
        if both and GENAI in self.layout.consumers and refusal(GENAI, self.model) is None:
            config, parts = self.model.config, self.parts
            write_speech_files(config, self.folder, parts["encoder"], parts["decoder"])
        return replace(file, kept=tuple(kept))


def folder_writer(
    source: str | Path, folder: Path, layout: str, parts: Mapping[str, Any]
) -> FolderWriter:
    """Return a writer for the files of a loaded model.

    Raises:
        OptionError: the library of the layout does not load such a model.
    """
    chosen, model = LAYOUTS[layout], next(iter(parts.values()))
    if len(chosen.consumers) == 1 and (reason := refusal(layout, model)) is not None:
        raise OptionError(
            f"{layout} does not load this model: {reason}",
            Argument("--layout", text="choose another {}"),
        )
    records = read_records(folder) if JS in chosen.consumers else {}
    return FolderWriter(Path(source), folder, chosen, model, records=records)
