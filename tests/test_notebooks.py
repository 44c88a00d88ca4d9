import ast
import re
import shlex
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from support.federations import compose

from fedexp.runtime.plan import plan

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
CONF = Path(__file__).parent.parent / "conf"
LARGEST = 200_000
GROUPS = ("algorithm", "head", "loss", "regularizer", "personalization", "sampler", "aggregator")


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
    assert not re.search(r"\[\d{4}-\d\d-\d\d | · \d+ s · ", content)  # logs and times of a command


def test_the_spiral_lesson_has_the_data_of_its_runs_and_a_uniform_head() -> None:
    cells = nbformat.read(CONF.parent / "notebooks/02_spiral.ipynb", as_version=4).cells
    calls = [
        n
        for c in cells
        if c.cell_type == "code"
        for n in ast.walk(ast.parse(c.source))
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "Spiral"
    ]
    drawn = {each.arg: ast.literal_eval(each.value) for each in calls[0].keywords}
    experiment = compose("experiment=fednh/spiral").data.node
    assert drawn == {key: value for key, value in experiment.items() if key != "_target_"}
    angles = ast.literal_eval(cells[-1].outputs[0].data["text/plain"])
    assert [angles[f"uniform, {each}"] for each in ("balanced", "imbalanced")] == [60, 60]


def options(path: Path) -> list[list[str]]:
    """The options of fedexp's sockets in each list of overrides of a lesson, with their keys."""
    cells = nbformat.read(path, as_version=4).cells
    sources = [
        re.sub(r"^\s*[!%].*", "", c.source, flags=re.M) for c in cells if c.cell_type == "code"
    ]
    lists = [n for each in sources for n in ast.walk(ast.parse(each)) if isinstance(n, ast.List)]
    found = []
    for node in lists:
        texts = [str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant)]
        words = [each for each in texts if re.match(rf"({'|'.join(GROUPS)})[\w.]*=", each)]
        chosen = [each.replace("=", "/") for each in words if "." not in each.partition("=")[0]]
        if chosen and all((CONF / f"{each}.yaml").is_file() for each in chosen):
            found.append(words)
    return found


def test_no_option_of_a_lesson_is_one_that_fedexp_warns_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The lessons add their options to FedAvg."""
    found = [(path.stem, words) for path in NOTEBOOKS for words in options(path)]
    assert len(found) >= 20
    for lesson, words in found:
        chosen = (
            [] if any(each.startswith("algorithm=") for each in words) else ["algorithm=fedavg"]
        )
        plan(compose(*chosen, *words))
        assert caplog.messages == [], lesson


def typed(path: Path) -> list[list[str]]:
    """The words of each ``fedexp`` command in the text of a lesson."""
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return [shlex.split(each) for each in re.findall(r"`(?:PYTHONPATH=\. )?fedexp ([^`]+)`", text)]


def first_job(words: list[str]) -> list[str]:
    """The overrides of a command's first job, without the options that the lesson itself writes."""
    firsts = [re.split(r",(?![^\[]*\])", each)[0] for each in words if "=" in each]
    options = [(each, *each.lstrip("+").split("=")) for each in firsts]
    return [
        each
        for each, group, option in options
        if not (CONF / group).is_dir()
        or "[" in option
        or (CONF / group / f"{option}.yaml").exists()
    ]


def test_the_commands_in_the_text_of_a_lesson_are_composed() -> None:
    found = [words for path in NOTEBOOKS for words in typed(path) if "..." not in words]
    assert len(found) >= 6
    for words in found:
        compose(*first_job(words))


@pytest.mark.parametrize("lesson", ["05_reading_results", "08_your_own_aggregation"])
def test_the_command_of_a_lesson_has_the_settings_of_its_code(lesson: str) -> None:
    path = CONF.parent / "notebooks" / f"{lesson}.ipynb"
    code = next(
        c.source
        for c in nbformat.read(path, as_version=4).cells
        if c.cell_type == "code" and "\ncommon = [" in f"\n{c.source}"
    )
    texts = [n.value for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Constant)]
    set_there = {
        each for each in map(str, texts) if re.fullmatch(r"(?!tracking)[a-z.]+=[\w.]+", each)
    }
    (command,) = (words for words in typed(path) if "-m" in words)
    assert {"rounds=10", "measure.personal=null"} <= set_there
    assert set_there <= set(command)


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
