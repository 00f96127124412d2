"""Documents on a file for other programs; the library of each standard accepts them."""

import base64
import hashlib
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.core.errors import FileError
from qtool.evaluation.cyclonedx import cyclonedx_document
from qtool.evaluation.in_toto import in_toto_statement
from qtool.evaluation.measure.provenance import provenance
from tests.evaluation.report.page.made_up import made_up

needs_cyclonedx = pytest.mark.skipif(
    not (find_spec("cyclonedx") and find_spec("jsonschema")),
    reason="cyclonedx-python-lib[json-validation] is not installed",
)
needs_in_toto = pytest.mark.skipif(
    not find_spec("in_toto_attestation"), reason="in-toto-attestation is not installed"
)

needs_model_signing = pytest.mark.skipif(
    not (find_spec("model_signing") and find_spec("OpenSSL")),
    reason="model-signing and pyOpenSSL are not installed",
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with its weights in a second one, of the name that is in the report."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).eval()
    path = tmp_path_factory.mktemp("files") / "int8.onnx"
    quantized = qtool.quantize(model, [torch.randn(64, 64)], accuracy="fast")
    quantized.export(path, external_data=True)
    return path


@pytest.fixture
def foreign(file: Path, tmp_path: Path) -> Path:
    """The same graph without a word on what made it."""
    model = onnx.load(file)
    del model.metadata_props[:]
    model.producer_name, model.producer_version = "pytorch", "9"
    onnx.save(model, tmp_path / "int8.onnx")
    return tmp_path / "int8.onnx"


def digests(path: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in path.parent.iterdir()}


def test_subjects_are_the_files_as_they_lie_on_disk(file: Path) -> None:
    statement = in_toto_statement(file)
    subjects = {s["name"]: s["digest"]["sha256"] for s in statement["subject"]}
    assert subjects == digests(file)
    assert len(subjects) == 2


def test_the_predicate_has_what_provenance_shows(file: Path) -> None:
    made, predicate = provenance(file), in_toto_statement(file)["predicate"]
    assert made.origin is not None
    definition = predicate["buildDefinition"]
    assert definition["externalParameters"] == {
        "target": "onnxruntime",
        "observer": made.observer,
        "recipe": made.recipe,
    }
    resources = {r["name"]: r for r in definition["resolvedDependencies"]}
    weights = {"qtoolModel": made.origin.model, "qtoolWeights": made.origin.weights}
    assert resources["float model"]["digest"] == weights
    assert resources["calibration samples"]["digest"] == {"qtoolSamples": made.origin.data}
    assert resources["calibration samples"]["annotations"] == {"samples": 64}
    assert resources["torch"]["uri"] == f"pkg:pypi/torch@{made.origin.versions['torch']}"
    assert predicate["runDetails"]["builder"]["version"] == {"qtool-onnx": made.qtool}


@needs_in_toto
def test_the_library_of_in_toto_accepts_the_statement(file: Path) -> None:
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as Message

    statement = in_toto_statement(file)
    Statement.copy_from_pb(ParseDict(statement, Message())).validate()
    predicate = ParseDict(statement["predicate"], Provenance())  # unknown fields raise
    for resource in predicate.build_definition.resolved_dependencies:
        ResourceDescriptor.copy_from_pb(resource).validate()


def test_a_file_of_another_tool_has_no_statement(foreign: Path) -> None:
    with pytest.raises(FileError, match="pytorch 9, without a record of model and data; give fo"):
        in_toto_statement(foreign)


def figures(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    card = document["metadata"]["component"]["modelCard"]
    return {m["type"]: m for m in card["quantitativeAnalysis"]["performanceMetrics"]}


def test_the_model_card_has_the_figures_of_the_report(file: Path) -> None:
    report = made_up()
    shown = figures(cyclonedx_document(file, report))
    bounds = {}
    for metric in report.accuracy.metrics:
        assert shown[metric.name]["value"] == f"{metric.values[1]:.6g}"
        loss = shown[f"{metric.name}, loss against the float model"]
        assert loss["value"] == f"{metric.drops[1]:.6g}"
        if (interval := metric.intervals[1]) is None:
            assert "confidenceInterval" not in loss
        else:
            bounds[metric.name] = loss["confidenceInterval"]
            low, high = f"{interval.low:.6g}", f"{interval.high:.6g}"
            assert loss["confidenceInterval"] == {"lowerBound": low, "upperBound": high}
    assert bounds
    assert "output SQNR, dB" in shown
    assert shown["speed-up over float"]["slice"] == report.latency[-1].what


def test_the_bill_has_each_file_and_the_float_model(file: Path) -> None:
    component = cyclonedx_document(file)["metadata"]["component"]
    named = {c["name"]: c["hashes"] for c in (component, *component["components"])}
    expected = {n: [{"alg": "SHA-256", "content": d}] for n, d in digests(file).items()}
    assert named == expected
    made = provenance(file)
    assert made.origin is not None
    (ancestor,) = component["pedigree"]["ancestors"]
    assert {p["value"] for p in ancestor["properties"]} == {made.origin.model, made.origin.weights}
    assert "quantitativeAnalysis" not in component["modelCard"]


@needs_cyclonedx
@pytest.mark.parametrize("which", ["measured", "alone", "foreign"])
def test_the_library_of_cyclonedx_accepts_the_bill(file: Path, foreign: Path, which: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    report = made_up() if which == "measured" else None
    document = cyclonedx_document(foreign if which == "foreign" else file, report)
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(document)) is None
    spoiled = {**document, "metadata": {"component": {"type": "network", "name": "x"}}}
    assert validator.validate_str(json.dumps(spoiled)) is not None


def test_a_report_of_another_file(file: Path) -> None:
    other = file.with_name("other.onnx")
    other.write_bytes(file.read_bytes())
    with pytest.raises(FileError, match=r"is of int8\.onnx, not of other\.onnx; give the report"):
        cyclonedx_document(other, made_up())
    other.unlink()


@needs_model_signing
def test_a_signature_lists_the_digests_that_inspect_prints(file: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec
    from model_signing import signing, verifying

    folder, secret, public, signature = (tmp_path / n for n in ("out", "key.pem", "pub.pem", "sig"))
    shutil.copytree(file.parent, folder)
    key = ec.generate_private_key(ec.SECP256R1())
    as_pkcs8 = (forms.PrivateFormat.PKCS8, forms.NoEncryption())
    secret.write_bytes(key.private_bytes(forms.Encoding.PEM, *as_pkcs8))
    as_info = forms.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(forms.Encoding.PEM, as_info))
    signing.Config().use_elliptic_key_signer(private_key=secret).sign(folder, signature)
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=public)
    verifier.verify(folder, signature)
    envelope = json.loads(signature.read_text())["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    listed = {r["name"]: r["digest"] for r in statement["predicate"]["resources"]}
    assert listed == provenance(folder / "int8.onnx").sha256
    assert qtool.verify(folder / "int8.onnx").passed
    (folder / "int8.onnx").write_bytes((folder / "int8.onnx").read_bytes() + b"\0")
    with pytest.raises(ValueError, match="mismatch"):
        verifier.verify(folder, signature)
