"""The table of what was found: its numbers are on the pages that it names, and its files exist."""

import re

import pytest
from generate.results import RESULTS

TABLE = (RESULTS / "README.md").read_text().partition("| question |")[2].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines()[2:]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_an_answer_is_on_its_page(row: list[str]) -> None:
    _, found, _, _, page = row
    text = read(page)
    numbers = re.findall(r"[+-]?\d\.\d+(?: ± \d\.\d+)?", found)
    assert [each for each in numbers if each not in text] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_its_numbers_are_in_a_file_of_the_folder(row: list[str]) -> None:
    files = re.findall(r"`([\w/]+\.(?:csv|json))`", row[3])
    assert [each for each in files if not (RESULTS / each).exists()] == []


def test_every_page_is_named() -> None:
    text = (RESULTS / "README.md").read_text()
    pages = {path.name for path in RESULTS.glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\((\w+\.md)", text))
    assert len(ROWS) > 20


def read(link: str) -> str:
    """The page behind a link of the table."""
    (target,) = re.findall(r"\]\(([^)#]*)", link)
    return (RESULTS / (target or "README.md")).read_text()
