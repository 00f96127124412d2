"""Notes on steps that leave a model as it was."""

from __future__ import annotations

NO_SAMPLES = "skipped, since the calibration kept no samples; calibrate with this step chosen"
TOO_FEW = "skipped, since the calibration kept too few samples for it ({})"
LESS_ACCURATE = "skipped, since it was less accurate on held-out samples"
FAILED = "skipped, since it failed ({})"
