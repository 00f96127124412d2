"""The table of processors."""

import pytest

from qtool.core.errors import EmulationError
from qtool.plugins.emulators.cpus import CPUS, Family, cpuinfo, parse_cpus


def test_names_are_found_in_any_spelling() -> None:
    found = parse_cpus("Haswell, wasm,,haswell")
    assert [c.name for c in found] == ["haswell", "wasm"]
    assert parse_cpus(["nehalem"]) == (CPUS["nehalem"],)


def test_all_stands_for_every_row() -> None:
    assert parse_cpus("all") == tuple(CPUS.values())
    assert parse_cpus("wasm,all")[0].name == "wasm"


@pytest.mark.parametrize(
    ("names", "why"), [("zen", "unknown processor 'zen'"), (",", "no processor is")]
)
def test_other_names_are_refused_with_all_that_there_are(names: str, why: str) -> None:
    with pytest.raises(EmulationError, match=why) as caught:
        parse_cpus(names)
    assert all(name in str(caught.value) for name in (*CPUS, "all"))


def test_each_row_has_what_its_family_needs() -> None:
    for cpu in CPUS.values():
        assert bool(cpu.model) == (cpu.family is not Family.WEB)
        assert bool(cpu.features) == bool(cpu.part) == (cpu.family is Family.ARM)


def test_cpuinfo_says_which_products_there_are() -> None:
    """ONNX Runtime chooses its kernels on ARM by these words."""
    features = {
        name: dict(line.split("\t: ") for line in cpuinfo(CPUS[name]).splitlines() if line)[
            "Features"
        ].split()
        for name in ("cortex-a53", "neoverse-n1", "neoverse-n2")
    }
    assert [("asimddp" in f, "i8mm" in f, "sve" in f) for f in features.values()] == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
    ]


def test_the_webgpu_provider_is_named_alone() -> None:
    with pytest.raises(EmulationError, match="webgpu is no processor; name it alone"):
        parse_cpus("haswell, webgpu")
