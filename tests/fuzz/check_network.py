"""A random network through the whole of qtool."""

from collections.abc import Sequence
from contextlib import suppress

import torch

import qtool
from qtool.core.errors import QtoolError
from qtool.frontends.captured_model import capture_model
from tests.fuzz.network import Network
from tests.fuzz.oracle import Verdict, _leaves, check_file, judged, rounded_alike
from tests.fuzz.tolerance import NEAR, distance, float_noise

CALIBRATED, SEEN, OTHERS = 32, 2, (24, 1)  # samples of a batch, batches; sizes of new ones
Inputs = tuple[torch.Tensor, ...]


def check_network(network: Network) -> Verdict:
    """Converts it, and looks at everything that comes out."""
    return judged(lambda: _checked(network))


def _checked(network: Network) -> Verdict:
    model = network.module()
    data = [network.batch(CALIBRATED, i + 1) for i in range(SEEN)]
    new, truths = _truths(model, [network.batch(n, 50 + n) for n in OTHERS])
    settings = {k: v for k, v in network.settings.items() if k != "format"}
    form = network.settings.get("format", "qdq")
    captured = capture_model(model, data[0])
    for batch, truth in zip(new, truths, strict=True):
        with torch.no_grad():
            found = _leaves(captured.graph.module(*batch))
        apart = max(distance(a, b) for a, b in zip(truth, found, strict=True))
        near = apart <= NEAR or apart <= float_noise(model, batch, {})
        if not near and not rounded_alike(captured.graph.module, batch, truth, found):
            return Verdict("capture", f"{apart:.1e} of the range at batch {len(batch[0])}")
    quantized = qtool.quantize(captured, data, **settings)
    try:
        return check_file(quantized, new, truths, form)
    except QtoolError as error:
        if form != "qdq" or type(error).__name__ != "VerificationError":
            raise
        return Verdict("refused", f"OWN FILE VerificationError: {error}")


def _truths(model: torch.nn.Module, batches: Sequence[Inputs]) -> tuple[list[Inputs], list[Inputs]]:
    """Batches that the model itself takes (a norm refuses a single value), and its outputs."""
    kept, truths = [], []
    for batch in batches:
        with torch.no_grad(), suppress(RuntimeError, ValueError):
            truths.append(tuple(t.clone() for t in _leaves(model(*(x.clone() for x in batch)))))
            kept.append(batch)
    return kept, truths
