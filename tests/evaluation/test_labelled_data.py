"""Labels of a frame of pandas."""

import numpy as np
import pytest

from qtool.core.errors import DataError
from qtool.evaluation.labelled_data import LabelledData

pandas = pytest.importorskip("pandas")
FRAME = pandas.DataFrame({"a": np.arange(6.0), "b": np.ones(6)})
PRICES = pandas.Series(np.arange(6.0))


def test_rows_in_another_order_are_refused_and_each_remedy_works() -> None:
    shuffled = PRICES.sample(frac=1, random_state=0)
    with pytest.raises(DataError, match=r"another order .*; give labels.loc\[data.index\], or"):
        LabelledData(FRAME, shuffled).check()
    LabelledData(FRAME, shuffled.loc[FRAME.index]).check()
    LabelledData(FRAME, shuffled.to_numpy()).check()


@pytest.mark.parametrize(
    "labels",
    [
        PRICES,
        PRICES.to_frame(),
        PRICES.set_axis([3, 9, 2, 8, 1, 7]),  # of other rows, so in the order of the data
        PRICES.astype(int).astype(object),
    ],
)
def test_labels_in_the_order_of_the_data(labels: object) -> None:
    LabelledData(FRAME, labels).check()  # type: ignore[arg-type]  # as of numpy


@pytest.mark.parametrize("kind", ["object", "category", "str"])
def test_names_are_refused(kind: str) -> None:
    with pytest.raises(DataError, match="the labels are names, such as 'cat'; pass class numbers"):
        LabelledData(FRAME, pandas.Series(["cat", "dog"] * 3).astype(kind)).check()
