"""Names that a graph cannot be written with: the weights are called otherwise, and are the same."""

import pytest
import torch
from torch import nn

from qtool.frontends.captured_model import capture_model
from qtool.frontends.torch.attribute_names import with_valid_names


class Heads(nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(4, 3) for name in names})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(head(x) for head in self.heads.values())


@pytest.mark.parametrize(
    "names", [("class", "class_"), ("None",), ('a"); raise ValueError(("',), ("a\\",), ("a\nb",)]
)
def test_a_model_with_such_names_is_captured(names: tuple[str, ...]) -> None:
    model, x = Heads(*names).eval(), torch.randn(5, 4)
    graph = capture_model(model, x).graph
    assert torch.equal(graph.module(x), model(x))
    assert len(graph.module.state_dict()) == 2 * len(names)


def test_a_program_stays_as_it_is() -> None:
    model, x = Heads("class").eval(), torch.randn(5, 4)
    program = torch.export.export(model, (x,))
    before = list(program.state_dict)
    assert list(with_valid_names(program).state_dict) == [
        "heads.class_.weight",
        "heads.class_.bias",
    ]
    assert list(program.state_dict) == before
    plain = torch.export.export(Heads("box").eval(), (x,))
    assert with_valid_names(plain) is plain
