"""Saved programs: read back whole, refused when damaged, never unpickled."""

import io
import os
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.errors import CaptureError
from qtool.frontends.torch.exported_program import _with_lifted, from_program, load_program
from tests.models.small import NETWORKS
from tests.named_cases import cases, named_cases
from tests.passes.differential import Function, assert_same


def export(model: nn.Module, *args: torch.Tensor, dynamic: bool = True) -> ExportedProgram:
    spec = tuple({0: Dim.DYNAMIC} for _ in args) if dynamic else None
    return torch.export.export(model, args, dynamic_shapes=spec)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "model.pt2"
    torch.export.save(export(NETWORKS["residual"].model(), torch.randn(2, 3, 8, 8)), path)
    return path


def test_round_trip(saved: Path, tmp_path: Path) -> None:
    model = NETWORKS["residual"].model()
    path = tmp_path / "model.pt2"
    torch.export.save(export(model, torch.randn(2, 3, 8, 8)), path)
    graph = from_program(load_program(path))
    for size in (2, 5, 1):
        assert_same(model, graph.module, (torch.randn(size, 3, 8, 8),), tolerance=1e-6)
    assert [str(i) for i in graph.inputs] == ["x: float32[batch, 3, 8, 8]"]
    assert {"stem", "conv1", "head"} <= {G.name_of(n) for n in graph.graph.nodes}


def test_a_fixed_batch_stays_fixed() -> None:
    graph = from_program(export(nn.Linear(4, 2).eval(), torch.ones(3, 4), dynamic=False))
    assert graph.inputs[0].shape == (3, 4)


def test_a_program_without_example_inputs() -> None:
    program = export(nn.ReLU().eval(), torch.ones(2, 3))
    program._example_inputs = None
    with pytest.raises(CaptureError, match="no example inputs; export it again"):
        from_program(program)


def test_symbols_of_two_inputs_get_two_names() -> None:
    class Rows(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a.sum() + b

    graph = from_program(export(Rows().eval(), torch.ones(2, 3), torch.ones(4, 3)))
    assert [i.shape for i in graph.inputs] == [("batch", 3), ("b_batch", 3)]


def changed(saved: Path, path: Path, **contents: bytes) -> Path:
    """The saved program with other contents in the entries whose names end so."""
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w") as new:
        replaced = 0
        for name in old.namelist():
            data = old.read(name)
            for end, content in contents.items():
                if Path(name).name.replace(".", "_") == end:
                    data, replaced = content, replaced + 1
            new.writestr(name.replace("model/", "evil/", 1), data)
        assert replaced == len(contents)
    return path


class Malicious:
    """Unpickling it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def pickled(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def test_pickled_code_is_not_run(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "run"
    path = changed(saved, tmp_path / "evil.pt2", model_pt=pickled(Malicious(mark)))
    with pytest.raises(CaptureError, match=r"not a readable \.pt2 file"):
        load_program(path)
    assert not mark.exists()
    torch.load(io.BytesIO(pickled(Malicious(mark))), weights_only=False)
    assert mark.exists(), "the check is able to fail"


@named_cases(
    "content, message",
    ("truncated", lambda data: data[: len(data) // 2], "is not a readable .pt2 file"),
    ("its end is missing", lambda data: data[: -len(data) // 3], "is not a readable .pt2 file"),
    ("empty", lambda data: b"", "is empty"),
    ("foreign", lambda data: b"\0 no zip", r"is not a readable .pt2 file.*torch.export"),
    (
        "weights only",
        lambda data: pickled({"weight": torch.ones(2)}),
        r"is not a readable .pt2 file.*torch.export",
    ),
)
def test_damaged_files(
    saved: Path, tmp_path: Path, content: object, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "damaged.pt2"
    path.write_bytes(content(saved.read_bytes()))
    with pytest.raises(CaptureError, match=rf"damaged.pt2.* {message}"):
        load_program(path)
    assert capfd.readouterr().err == "", "torch's own logs are kept back"


def test_from_program_leaves_the_program_alone() -> None:
    program = export(Function(lambda x: x.relu_()).eval(), torch.ones(2, 3))
    before = str(program.graph)
    from_program(program)
    assert str(program.graph) == before


class Starts(nn.Module):
    """Joins its input to a tensor that it makes in each call, as a cache of keys begins."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.tensor([]), x], 1)


class Holder:
    """A container that computes with what it is given."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = torch.cat([held])


class Nameless(Holder):
    """One of which torch is not told how its parts are called."""


def _keyed(holder: Any) -> Any:
    return [(pytree.GetAttrKey("held"), holder.held)], None


for kind in (Holder, Nameless):
    pytree.register_pytree_node(
        kind,
        lambda h: ([h.held], None),
        partial(lambda kind, held, _: kind(held[0]), kind),
        serialized_type_name=f"tests.{kind.__name__}",
        flatten_with_keys_fn=_keyed if kind is Holder else None,
    )


def test_tensors_that_a_program_makes_have_the_names_that_torch_looks_for() -> None:
    """Caches of transformers are traced again under names that count on from those there are."""
    program = export(nn.Sequential(Starts(), nn.ReLU(True), Starts()).eval(), torch.randn(2, 3))
    before = dict(program.constants)
    found = _with_lifted(program).constants
    assert set(before) == {"0.lifted_tensor_0", "2.lifted_tensor_1"} == set(program.constants)
    made = [found[f"lifted_tensor_{i}"] for i in range(4)]
    assert all(a is b for a, b in zip(made, [*before.values()] * 2, strict=True))
    plain = export(nn.ReLU().eval(), torch.ones(2))
    assert _with_lifted(plain) is plain


@pytest.mark.parametrize(("kind", "name"), [(Holder, "kept.held"), (Nameless, "output_0")])
def test_outputs_in_a_container_of_the_users(kind: type[Holder], name: str) -> None:
    program = export(Function(lambda x: {"kept": kind(x + 1)}).eval(), torch.ones(2, 3))
    assert from_program(program).outputs == (name,)


@cases(
    "message, remedy",
    ("Constant tensor lifted_tensor_0 is not in the constants dictionary.", "use_cache=False"),
    ("something else", "write to a copy"),
)
def test_what_torch_cannot_take_apart(
    message: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = export(NETWORKS["residual"].model(), torch.randn(2, 3, 8, 8))

    def fails(self: ExportedProgram, table: object) -> ExportedProgram:
        raise RuntimeError(message)

    monkeypatch.setattr("qtool.frontends.torch.exported_program.make_functional", lambda _: False)
    monkeypatch.setattr(ExportedProgram, "run_decompositions", fails)
    with pytest.raises(CaptureError, match=remedy):
        from_program(program)
