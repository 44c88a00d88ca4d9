"""Checks of your own part (``fedexp.core.part``) or measure (``fedexp.measures.measure``)::

    from fedexp.testing import check_measure, check_part

    def test_the_contract() -> None:
        check_part("loss=robust", config_dir="conf")
        check_measure("+measure=drift", config_dir="conf")

A check runs a tiny federation on the digits data for two or three rounds, several times, and
compares the results. This takes seconds. It shows that your class keeps the contract, not that your
idea is good.
"""

from fedexp.testing.comparison import ContractError
from fedexp.testing.federations import TINY
from fedexp.testing.measures import check_measure
from fedexp.testing.parts import check_part

__all__ = ["TINY", "ContractError", "check_measure", "check_part"]
