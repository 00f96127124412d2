"""Models and weights by name, as a command line gives them."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.export import ExportedProgram

from qtool.core.errors import CaptureError, DataError
from qtool.frontends.load_model import load_model
from qtool.frontends.named_objects import import_object
from qtool.frontends.state_dicts import load_weights
from tests.frontends.torch.test_exported_program import Malicious
from tests.named_cases import named_cases

FACTORIES = """
import torch
from torch import nn

def linear():
    return nn.Linear(3, 2)

class Nets:
    deep = linear

made = nn.ReLU()
number = 3

class Silent(nn.Linear):
    def eval(self):
        super().eval()

def silent():
    return Silent(3, 2)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `nets.small` and a module that does not import, in the current directory."""
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").touch()
    (tmp_path / "nets" / "small.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    for name in ("nets", "nets.small"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    for name in ("nets", "nets.small"):
        sys.modules.pop(name, None)


@named_cases(
    "source, kind",
    ("a function", "nets.small:linear", nn.Linear),
    ("an attribute of a class", "nets.small:Nets.deep", nn.Linear),
    ("a module", "nets.small:made", nn.ReLU),
    ("a class of an installed package", "torch.nn:Identity", nn.Identity),
)
def test_models_by_name(package: Path, source: str, kind: type[nn.Module]) -> None:
    model = load_model(source)
    assert isinstance(model, kind)
    assert not model.training


def test_import_errors_are_of_the_kind_asked_for(package: Path) -> None:
    assert import_object("nets.small:number", DataError) == 3
    with pytest.raises(DataError, match="cannot import"):
        import_object("nets.small:nothing", DataError)


def test_programs(package: Path) -> None:
    torch.export.save(torch.export.export(nn.ReLU().eval(), (torch.ones(2),)), "relu.pt2")
    assert isinstance(load_model("relu.pt2"), ExportedProgram)
    with pytest.raises(CaptureError, match="holds its own weights; leave out 'weights'"):
        load_model("relu.pt2", "weights.pt")


def _save(state: object, path: Path) -> None:
    safetensors.torch.save_file(state, path) if path.suffix == ".safetensors" else torch.save(
        state, path
    )


@named_cases(
    "name, wrap",
    ("safetensors", "w.safetensors", lambda state: state),
    ("pt", "w.pt", lambda state: state),
    ("a checkpoint", "w.pth", lambda state: {"state_dict": state, "epoch": 3}),
)
def test_weights(package: Path, name: str, wrap: Callable[[object], object]) -> None:
    state = {"weight": torch.randn(2, 3), "bias": torch.randn(2)}
    _save(wrap(state), package / name)
    model = load_model("nets.small:linear", name)
    assert all(torch.equal(model.state_dict()[k], v) for k, v in state.items())


GOOD = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}


@named_cases(
    "name, state, message",
    (
        "more",
        "w.safetensors",
        {**GOOD, "more": torch.ones(1)},
        r"Unexpected key\(s\) in state_dict: \"more\"",
    ),
    (
        "complex",
        "w.pt",
        {**GOOD, "weight": torch.ones(2, 3, dtype=torch.complex64)},
        "weight is complex, and the model's is not",
    ),
    ("a list", "w.pt", [torch.ones(1)], "has a list, not a state dict"),
)
def test_weights_that_do_not_fit(tmp_path: Path, name: str, state: object, message: str) -> None:
    _save(state, tmp_path / name)
    model = nn.Linear(3, 2)
    with pytest.raises(CaptureError, match=message):
        load_weights(model, tmp_path / name)


@pytest.mark.parametrize("bare", [False, True], ids=["torch.save", "a bare pickle"])
def test_pickled_code_is_not_run(tmp_path: Path, bare: bool) -> None:
    mark, path = tmp_path / "run", tmp_path / "w.pt"
    evil = {"weight": Malicious(mark)}
    path.write_bytes(pickle.dumps(evil)) if bare else torch.save(evil, path)
    with pytest.raises(CaptureError, match="cannot be read as weights"):
        load_weights(nn.Linear(3, 2), path)
    assert not mark.exists()
    if not bare:
        torch.load(path, weights_only=False)
        assert mark.exists(), "the check is able to fail"


def test_a_task_of_what_is_no_folder_is_not_ignored(package: Path) -> None:
    with pytest.raises(CaptureError, match="missing: no such folder"):
        load_model("missing", task="text-classification")
    with pytest.raises(CaptureError, match="'task' is for folders of transformers"):
        load_model("nets.small:linear", task="fill-mask")


def test_an_eval_that_gives_nothing_back(package: Path) -> None:
    assert not load_model("nets.small:silent").training


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "_orig_mod.module.", "net."])
@pytest.mark.parametrize("wrapper", ["", "state_dict", "model_state_dict", "model"])
def test_checkpoints_of_training_scripts(
    tmp_path: Path, prefix: str, wrapper: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = {f"{prefix}{k}": v for k, v in GOOD.items()}
    extra = {"loss.weight": torch.ones(1)}
    content = {wrapper: state | extra, "epoch": 3} if wrapper else state
    torch.save(content, tmp_path / "w.ckpt")
    model = nn.Linear(3, 2)
    load_weights(model, tmp_path / "w.ckpt")
    assert torch.equal(model.weight, GOOD["weight"])
    assert f"the prefix '{prefix}' of its names is removed" in caplog.text
    assert ("its entry" in caplog.text) == bool(wrapper)


def test_names_without_the_prefix_of_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save(GOOD, tmp_path / "w.pt")
    model = nn.Sequential()
    model.add_module("net", nn.Linear(3, 2))
    load_weights(model, tmp_path / "w.pt")
    assert "its names get the prefix 'net.'" in caplog.text
