import pytest

from fedexp.data.classes import check_column
from fedexp.errors import InputError


def test_an_unknown_column_is_refused_with_those_of_a_table_of_ordinary_width() -> None:
    columns = [f"measure_{number}" for number in range(40)]
    with pytest.raises(InputError) as caught:
        check_column("data.user", "whose", [*columns, "patient"], "t.csv")
    listed = ", ".join([*columns, "patient"])
    assert str(caught.value) == f"data.user=whose: t.csv has no such column; it has {listed}"


def test_a_long_list_is_cut_and_the_most_similar_name_is_said() -> None:
    columns = [f"pixel_{number}" for number in range(784)]
    with pytest.raises(InputError, match=r"pixel_49, \.\.\.$"):
        check_column("data.target", "label", columns, "t.csv")
    with pytest.raises(
        InputError, match=r"no such column \(did you mean label\?\); it has pixel_0"
    ):
        check_column("data.target", "lable", [*columns, "label"], "t.csv")
