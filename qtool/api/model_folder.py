"""The folder that a model of transformers becomes: files, configuration, card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qtool.api.quantized_file import QuantizedFile
from qtool.core.downloads import hub_id
from qtool.core.errors import OptionError
from qtool.core.paths import is_file
from qtool.core.remedies import Argument
from qtool.core.summary import Summary
from qtool.frontends.huggingface.companion_files import (
    js_pooling,
    read_config,
    read_records,
    usable_consumers,
    write_card,
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
from qtool.frontends.huggingface.model_card import CARD, model_card, sections_of
from qtool.frontends.huggingface.towers import tower_of
from qtool.metrics.metric import Metric
from qtool.planning.plan import QuantPlan


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
        metrics: path in the folder -> metrics on the evaluation data.
    """

    source: Path
    folder: Path
    layout: FolderLayout
    model: Any
    files: dict[str, Summary] = field(default_factory=dict)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, Path] = field(default_factory=dict)
    metrics: dict[str, tuple[Metric, ...]] = field(default_factory=dict)

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
        consumers = usable_consumers(self.layout, self.model)
        self.files[name] = file.summary()
        self.metrics[name] = () if file.accuracy is None else file.accuracy.metrics
        kept = write_companions(
            self.model, self.source, file.path, self.layout, self.folder, file.mode
        )
        write_record(self.folder, self.records)
        if GENAI in consumers and {"encoder", "decoder"} <= self.parts.keys():
            config, parts = self.model.config, self.parts
            write_speech_files(config, self.folder, parts["encoder"], parts["decoder"])
        card = model_card(
            *(
                hub_id(self.source) or self.source.resolve().name,
                self.model,
                self.files,
                consumers,
                self._earlier(),
            ),
            pooling=js_pooling(self.source),
            metrics=self.metrics,
            dataset=f"{file.data_kind or 'evaluation'} data",
        )
        return replace(file, kept=(*kept, *write_card(self.folder, card)))

    def _earlier(self) -> dict[str, str]:
        """Return the card's sections of files from a command before."""
        card = self.folder / CARD
        if not is_file(card):
            return {}
        sections = sections_of(card.read_text(encoding="utf-8", errors="replace"))
        names = {Path(name).name for name in self.records.keys() - self.files.keys()}
        return {name: text for name, text in sections.items() if name in names}


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
