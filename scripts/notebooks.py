"""Execute the notebooks and store them with their outputs.

    python scripts/notebooks.py                # all of them
    python scripts/notebooks.py notebooks/08*  # some

Each notebook runs in a temporary folder. Paths of this machine, times and progress are not stored.
"""

import base64
import io
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parents[1] / "notebooks"


def execute(path: Path) -> NotebookNode:
    """The notebook with the outputs of its cells; an error in a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=1800, resources=resources, record_timing=False)
        client.execute()
    for cell in notebook.cells:
        outputs = [_portable(each) for each in cell.get("outputs", []) if _kept(each)]
        cell["outputs"] = [each for each in outputs if each.get("text") != ""]
        if cell.cell_type != "code":
            del cell["outputs"]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _kept(output: NotebookNode) -> bool:
    """Whether an output belongs to the lesson: progress bars and logs do not."""
    return bool(output.get("name") != "stderr")


def _small(picture: str) -> str:
    """A PNG, in base64, with at most 64 colours: a third of the size."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    small = io.BytesIO()
    image.quantize(64).save(small, "png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def _plain(text: str) -> str:
    """The text without names of temporary folders, a command's log lines and a run's seconds."""
    text = re.sub(re.escape(tempfile.gettempdir()) + r"/tmp\w+", "FOLDER", text)
    text = re.sub(r"^\[\d{4}-\d\d-\d\d .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r" · \d+ s(?= · )", "", text)


def _portable(output: NotebookNode) -> NotebookNode:
    """The output with plain texts and small pictures."""
    if "text" in output:
        output["text"] = _plain(output["text"])
    if picture := output.get("data", {}).get("image/png"):
        output["data"]["image/png"] = _small(picture)
    for kind, content in output.get("data", {}).items():
        if isinstance(content, str) and kind.startswith("text/"):
            output["data"][kind] = _plain(content)
    return output


def main() -> None:
    for path in [Path(each) for each in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        notebook = execute(path)
        nbformat.write(notebook, path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
