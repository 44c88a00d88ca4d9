"""The command that stores the runs."""

import json

from generate.options import find
from generate.run_plan import overrides
from measure import as_text, config_digest


def test_command_lines_with_the_same_config_share_their_runs() -> None:
    loss, preset, other = (
        config_digest(tuple(overrides(find(*each))))
        for each in (("loss", "moon"), ("algorithm", "moon"), ("algorithm", "fedavg"))
    )
    assert loss == preset != other


def test_a_list_of_numbers_takes_one_line() -> None:
    content = {"curves": {"a": [[1, 0.5], [2, 0.25]]}, "names": ["x", "y"]}
    text = as_text(content)
    assert json.loads(text) == content
    assert "[1, 0.5]" in text
    assert '["x", "y"]' in text
