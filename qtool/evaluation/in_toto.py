"""Provenance as an in-toto Statement v1 with a SLSA Provenance v1 predicate.

It is unsigned, and states what the metadata of the file states: equal files give equal statements.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qtool.core.errors import FileError
from qtool.core.records import to_json
from qtool.core.remedies import Argument
from qtool.core.versions import DISTRIBUTION
from qtool.evaluation.measure.provenance import Provenance, provenance

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = f"pkg:generic/{DISTRIBUTION}#post-training-quantization/v1"
"""What the parameters of the predicate mean: those of `qtool quantize`."""


def in_toto_statement(file: str | Path) -> dict[str, Any]:
    """Return the statement on a file that qtool wrote, for `json.dumps`.

    Subjects are the file and those that hold its weights, with their SHA-256. Digests of qtool have
    names of their own, such as "qtoolWeights".

    Args:
        file: an ONNX or TFLite file.

    Raises:
        FileError: not a model file, or one whose origin is not known.
        VerificationError: the metadata that qtool wrote is damaged.
    """
    made = provenance(file)
    if made.origin is None:
        raise FileError(
            f"{made.file}: written by {made.producer}, without a record of model and data",
            Argument("--format", "cyclonedx", "give {}, which describes files of any tool"),
        )
    return {
        "_type": STATEMENT,
        "subject": [{"name": n, "digest": {"sha256": d}} for n, d in made.sha256.items()],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "target": made.target,
                    "observer": made.observer,
                    "recipe": made.recipe,
                },
                "internalParameters": {"plan": made.plan, "steps": to_json(made.steps)},
                "resolvedDependencies": _dependencies(made),
            },
            "runDetails": {
                "builder": {
                    "id": f"pkg:generic/{DISTRIBUTION}@{made.qtool}",
                    "version": {DISTRIBUTION: made.qtool},
                }
            },
        },
    }


def _dependencies(made: Provenance) -> list[dict[str, Any]]:
    """Return the resource descriptors of model, samples and packages."""
    origin = made.origin
    assert origin is not None
    weights = {"qtoolWeights": origin.weights} if origin.weights else {}
    resources: list[dict[str, Any]] = [
        {"name": "float model", "digest": {"qtoolModel": origin.model, **weights}}
    ]
    if origin.samples:
        digest = {"digest": {"qtoolSamples": origin.data}} if origin.data else {}
        count = {"annotations": {"samples": origin.samples}}
        resources.append({"name": "calibration samples", **digest, **count})
    packages = origin.versions.items()
    return resources + [{"name": n, "uri": f"pkg:pypi/{n}@{version}"} for n, version in packages]
