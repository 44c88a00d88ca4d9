from pathlib import Path

from fedexp.core.description import Description
from fedexp.data.description_file import read_description, write_description
from fedexp.data.preparations.numbers import Numbers
from fedexp.data.preparations.rows import Rows


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Class names of any characters, and floats to the last bit."""
    about = Description("set", (2,), ('a"b', "é\n", "\udc80"), superclasses=("g", "g", "h"))
    rows = Rows(("n",), (0.1 + 0.2,), (1e-300,), {"kind": ("\t", "x")}, "refuse")
    for preparation in (rows, Numbers((2,), (1 / 3,), (1.0,))):
        write_description(tmp_path, about, preparation)
        assert read_description(tmp_path) == (about, preparation)
