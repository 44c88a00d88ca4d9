"""The page of compression: its measured rows are the stored runs that the options' pages show."""

import pytest
from generate.measured import Runs, mean_and_spread, runs
from generate.results import ROOT

ROWS = {
    "`none`": "none",
    "`fp16`": "fp16",
    "`qsgd`, 4 bits": "qsgd",
    "`randk`, 10 %, unbiased": "randk",
    "`powersgd`, rank 2": "powersgd",
    "`signsgd`": "signsgd",
    "`topk`, 1 %": "topk",
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_that_of_the_stored_runs(name: str) -> None:
    page = (ROOT / "docs" / "concepts" / "compression.md").read_text()
    own, plain = (runs("compression", each) for each in (ROWS[name], "none"))
    assert isinstance(own, Runs)
    assert isinstance(plain, Runs)
    sent, all_of_it = ({each["upload_bytes"] for each in found.runs} for found in (own, plain))
    assert len(sent) == len(all_of_it) == 1
    megabytes, part = sent.pop(), all_of_it.pop()
    share = "1" if name == "`none`" else f"1/{part / megabytes:.0f}"
    accuracy = mean_and_spread(own.final("global/accuracy"))
    assert f"| {name} | {accuracy} | {megabytes / 1e6:.2f} | {share} |" in page
