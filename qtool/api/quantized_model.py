"""The quantized model of the public API: export and timing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from qtool.conversion.quantized import Quantized
from qtool.evaluation.speedup import Speedup, measure_speedup
from qtool.verification import Verification

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from qtool.core.conversion_options import ExportKeywords

QUICK_TIMING = 0.05  # seconds
SMALL_MODEL = 2 * 10**7  # MACs of a sample; below, the cost of quantization may dominate


class QuantizedModel(Quantized):
    """A quantized model, callable like the float model.

    Calling it runs fake quantization in torch (with a straight-through gradient to its own copies
    of the weights); `export` writes the integer model.

    Attributes:
        module: the fake-quantized network as an nn.Module (a torch.fx.GraphModule): its
            parameters are copies of the float weights, which may be trained; `state_dict`,
            `load_state_dict` and `to` are those of torch. docs/recipes.md has an example.
        plan: the decision for each node.
        changes: what the recovery steps changed.
        notes: sentences for the user.
    """

    @overload
    def export(
        self, path: str | Path, verify: Literal[True] = True, **form: Unpack[ExportKeywords]
    ) -> Verification: ...

    @overload
    def export(
        self, path: str | Path, verify: bool = True, **form: Unpack[ExportKeywords]
    ) -> Verification | None: ...

    def export(
        self,
        path: str | Path,
        verify: bool = True,
        *,
        format: str = "qdq",  # noqa: A002  # the usual name
        external_data: bool = False,
        layout: str = "nhwc",
        interface: str | None = None,
        batch: str | None = None,
        timing: float | None = None,
    ) -> Verification | None:
        """Verify the integer model and write it; see `Quantized.export`.

        Args:
            path, verify, format, external_data, layout, interface, batch: as for
                `Quantized.export`.
            timing: seconds to spend on the speed comparison with the float model (see `speed`); 0
                skips it. The notes contain its result, and the layers that lose most where the file
                is slower. By default only small models are timed, briefly, and there is a note
                only if the file is slower.
        """
        result = super().export(
            path,
            verify,
            format=format,
            external_data=external_data,
            layout=layout,
            interface=interface,
            batch=batch,
        )
        if result is None:
            return result
        if timing is None:
            return replace(result, notes=(*result.notes, *self._slower(path, result.coverage.macs)))
        speedup = self.speed(path, timing) if timing else None
        notes = () if speedup is None else (str(speedup), speedup.warning())
        return replace(result, notes=(*result.notes, *filter(None, notes)))

    def _slower(self, path: str | Path, macs: int) -> tuple[str, ...]:
        """Return a warning if the file is clearly slower than float.

        Quantization has a fixed cost, and its gain grows with the model.
        """
        speedup = self.speed(path, QUICK_TIMING) if QUICK_TIMING and macs < SMALL_MODEL else None
        if speedup is None or speedup.timing.ratios[1].high >= 1:
            return ()
        return tuple(filter(None, [speedup.warning()]))

    def speed(self, path: str | Path, seconds: float = 1.0) -> Speedup | None:
        """Time an exported file and the float model; None if its target does not run here.

        One sample, one thread, alternating runs; where int8 is slower, `Speedup.warning()` names
        the slowest operators.

        Raises:
            VerificationError: ONNX Runtime refuses one of the files.
        """
        return measure_speedup(self, path, seconds=seconds)
