"""How data is read, as a record: the options of commands and the keywords of `load_data` are its
fields. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from qtool.core.limits import Range
from qtool.core.option_records import OptionRecord, option, options_of

_COUNT = Range(low=1, whole=True)


class DataKeywords(TypedDict, total=False):
    """The fields of `DataOptions` as keywords, for type checkers."""

    samples: int | None
    column: str | Sequence[str] | None
    states: Mapping[str, str] | str | None
    transform: str | None
    folder: str | Path | None
    max_length: int | None
    padded: bool
    classes: str | Sequence[str] | None


@dataclass(frozen=True)
class DataOptions(OptionRecord):
    """How data is read: the keywords of `qtool.load_data`.

    In Python `column` and `classes` are also lists of names, and `states` is output -> input, or
    "auto"; see `qtool.unroll_recordings`. `folder` is also the hub id of one in the local cache.

    Attributes:
        samples: use this many samples: of files evenly spaced ones, of a function's batches the
            first ones; by default all.
        column: columns of a table to use: of numbers, or of the text (or two texts) of a sample; by
            default usual names of texts, else all numbers.
        states: states of a recurrent model: MODEL's OUTPUT is its INPUT in the next step. The data
            then has recordings, each file of arrays with a row per step, and the float model runs
            over them; auto pairs the outputs with the inputs that the data lacks. Repeatable.
        transform: preprocessing of images or sounds: torchvision weights such as
            ResNet18_Weights.DEFAULT, timm, or package.module:function; by default the one in
            MODEL's folder.
        folder: folder with a tokenizer, image processor or feature extractor; by default MODEL.
        max_length: maximum text length in tokens.
        padded: pad every text to the maximum length; by default texts of one length form a batch.
        classes: names of the classes in the order of the model's outputs, for labels that are names
            of folders, or a file with one per line; by default classes.txt in the folder, else
            those of MODEL, else alphabetical order.

    Raises:
        OptionError: a number is out of its range.
    """

    samples: int | None = option(None, kind="count", range=_COUNT)
    column: str | Sequence[str] | None = option(None, metavar="NAME,...")
    states: Mapping[str, str] | str | None = option(
        None, "state", kind="states", repeated=True, metavar="OUTPUT=INPUT"
    )
    transform: str | None = option(None, metavar="NAME")
    folder: str | Path | None = option(None, "processor", kind="path")
    max_length: int | None = option(None, kind="count", range=_COUNT)
    padded: bool = option(False, "pad-to-max-length")
    classes: str | Sequence[str] | None = option(None, metavar="NAME,...|FILE")

    def chosen(self) -> dict[str, str]:
        """Return field -> option, without dashes, of what does not have its default."""
        own = options_of(type(self)).items()
        named = {name: each.name or name.replace("_", "-") for name, (_, each) in own}
        return {name: shown for name, shown in named.items() if getattr(self, name)}
