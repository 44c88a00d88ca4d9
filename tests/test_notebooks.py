import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
LARGEST = 200_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises where a cell does


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        assert bool(cell.outputs) or not shows(cell), cell.source
        assert not any(each.output_type == "error" for each in cell.outputs), cell.source
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert path.stat().st_size < LARGEST
    content = path.read_text(encoding="utf-8")
    assert not re.search(r"/tmp/|/home/|/root/|site-packages|C:\\\\", content)  # a machine's paths


def shows(cell: NotebookNode) -> bool:
    """Whether a cell prints, draws or ends in a value; the value of a call may be None."""
    if cell.source.startswith("%%") or "\n!" in f"\n{cell.source}":
        return True
    *_, last = tree = ast.parse(cell.source).body
    calls = {
        ast.unparse(each.func)
        for each in ast.walk(ast.Module(tree, []))
        if isinstance(each, ast.Call)
    }
    ends_in_value = isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call)
    return bool(calls & {"print", "plt.show"}) or ends_in_value
