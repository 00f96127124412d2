"""What steps are judged by: rows that TopK selects are a set, a detector's scores count."""

import torch
from torch import nn

import qtool
from qtool.algorithms.comparable_pairs import comparable_pairs
from qtool.core.output_evidence import BY_VALUES, Evidence
from qtool.planning.plan import Execution


def test_selected_rows_are_compared_in_any_order() -> None:
    boxes, scores = torch.randn(2, 6, 4), torch.randn(2, 6)
    order = torch.tensor([3, 1, 0, 2, 5, 4])
    rows = Evidence(rows=6)
    pairs = comparable_pairs([boxes, scores], [boxes[:, order], scores[:, order]], [rows, rows])
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(pairs[0][0], boxes[:, :3])  # the last ones may be others
    plain = [Evidence(), Evidence()]
    pairs = comparable_pairs([boxes, scores], [boxes[:, order], scores[:, order]], plain)
    assert not any(torch.equal(a, b) for a, b in pairs[:2])


def test_outputs_whose_number_of_rows_depends_on_values_are_left_out() -> None:
    kept, left = torch.randn(2, 4), torch.randn(5, 7)
    by_values = Evidence(rows=BY_VALUES)
    (pair,) = comparable_pairs([left, kept], [left[:3], kept], [by_values, Evidence()])
    assert pair == (kept, kept)


def test_scores_of_a_detector_are_a_pair_of_their_own() -> None:
    real = torch.rand(2, 6, 40) * 0.01
    real[:, :4] *= 30000  # pixels
    real[0, 4, 7] = 0.9
    coded = real.clone()
    coded[0, 4, 7] = 0.5
    (a, b), (score, sunk) = comparable_pairs([real], [coded], [Evidence()])
    assert float((a - b).square().sum() / a.square().sum()) < 1e-5
    assert float((score - sunk).square().sum() / score.square().sum()) > 0.1
    (_, empty) = comparable_pairs([real[1:]], [coded[1:]], [Evidence()])
    assert not any(each.any() for each in empty)  # no object, and as many pairs


class Select(nn.Module):
    """The best half of the positions of an image, with their features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.body(x).flatten(2).transpose(1, 2)
        best = rows[..., 0].topk(rows.shape[1] // 2)[1]
        return rows.gather(1, best[..., None].expand(-1, -1, rows.shape[2]))


def test_near_ties_move_no_layer_to_float() -> None:
    torch.manual_seed(0)
    data = [torch.randn(16, 3, 8, 8) for _ in range(3)]
    model = qtool.quantize(Select().eval(), data, recover=["sensitive-layers"])
    assert {d.execution for d in model.plan.nodes if d.macs} == {Execution.INTEGER}


class Queries(nn.Module):
    """A layer that reads the features of the best half of the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.select = Select()
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.select(x))
        return result


def test_no_weight_is_fitted_to_rows_of_other_positions() -> None:
    torch.manual_seed(0)
    net = Queries().eval()
    data = [torch.randn(16, 3, 8, 8) for _ in range(6)]
    x = torch.randn(64, 3, 8, 8)
    exact, errors = net(x).detach(), []
    for steps in ([], ["gptq"]):
        result = qtool.quantize(net, data, recover=steps)(x).detach()
        ((real, coded),) = comparable_pairs([exact], [result], [Evidence(rows=32)])[:1]
        errors.append(float((real - coded).square().sum()))
    assert errors[1] <= 1.05 * errors[0]
