"""The count of places that name an operator."""

from __future__ import annotations

from benchmarks.operator_cost import FORMAT_LISTS, ROOT, cost, names_of, naming_lines

SOURCE = '''"""About leaky_relu."""
KINDS = {"LeakyRelu", "Elu"}  # 2
# LEAKY_RELU
def leaky_relu(x):  # 4
    """LeakyRelu."""
    return x  # 6
aten.leaky_relu_.default, log_leaky_relu  # 7
F = "QLinearLeakyRelu ELU"  # 8
'''


def test_lines_with_a_name_and_functions_of_that_name_count() -> None:
    assert naming_lines(SOURCE, names_of("leaky_relu")) == {2, 4, 6, 7, 8}


def test_other_names_of_an_operator() -> None:
    assert naming_lines(SOURCE, names_of("exponential=elu")) == {2, 8}


def test_an_activation_function_with_two_integer_kernels_is_named_in_few_places() -> None:
    counts = cost(ROOT, "leaky_relu")
    places = {name: n for name, n in counts.items() if name not in FORMAT_LISTS}
    assert len(places) <= 15, "\n".join(places)
    assert sum(places.values()) <= 200
