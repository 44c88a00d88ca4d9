"""``fedexp --help``: every table in a line of its own, and no more than two screens of 46 lines."""

import sys
from pathlib import Path

import pytest

from fedexp.cli.command import config_folder
from fedexp.cli.help import config_groups, paper_tables
from fedexp.preview import main
from fedexp.reporting.papers.sweep import table_presets

SOURCES = [{"path": config_folder(), "schema": "file"}]


@pytest.fixture
def template() -> str:
    return Path(config_folder(), "hydra/help/fedexp.yaml").read_text()


def test_it_is_short(template: str) -> None:
    groups, listed = config_groups(SOURCES, ["hydra", "method"]), paper_tables(SOURCES)
    text = template.partition("template: |-\n")[2].partition("footer:")[0]
    lines = len(text.splitlines()) - 2 + len((groups + "\n" + listed).splitlines())
    assert lines <= 96


def test_the_measures_are_listed() -> None:
    lines = config_groups(SOURCES, ["hydra"]).splitlines()
    (listed,) = (line for line in lines if line.startswith("measure: "))
    assert {"forgetting", "membership", "personal"} <= set(listed[len("measure: ") :].split(", "))


def test_tables_have_a_line_each_and_figures_one_for_each_paper() -> None:
    lines = paper_tables(SOURCES).splitlines()
    names = [name for name, _ in table_presets([Path(config_folder())])]
    own = [name for name in names if "/figure" not in name]
    assert [line.split()[0] for line in lines[: len(own)]] == own
    figures = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[len(own) :]}
    assert figures["fednh/"] == "figure1, figure2, figure4, figure6, figure8"
    listed = [f"{paper}{each}" for paper, text in figures.items() for each in text.split(", ")]
    assert sorted(own + listed) == sorted(names)


def test_that_of_fedexp_partition_begins_with_its_own_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedexp-partition", "--help", "partition.beta=0.1"])
    main()
    first, _, usage, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("fedexp-partition: what every client would hold, without training")
    assert usage.startswith("Usage:   fedexp-partition GROUP=OPTION")
