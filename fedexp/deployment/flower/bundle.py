"""Writes an app for Flower: a folder that ``flwr run`` takes."""

from pathlib import Path

import jinja2

from fedexp.deployment.flower.app import FILE, App
from fedexp.deployment.flower.check import check_on_nodes
from fedexp.deployment.flower.own_code import FOLDER, OwnCode
from fedexp.deployment.flower.own_config import PLACES
from fedexp.errors import InputError
from fedexp.runtime.plan import plan
from fedexp.version import code_version

MODULE = "fedexp_app"
"""The app's module folder."""

FLWR = "1.41"
"""The minor version of flwr that the app needs; each minor version changes Flower's interface."""

REQUIREMENT = f"flwr>={FLWR}.0,<1.42"
"""The app's dependency; the extra ``flower`` of fedexp requires the same version."""

_TEMPLATES = Path(__file__).parent / "templates"
_FILES = {
    "pyproject.toml": "pyproject.toml.jinja",
    "README.md": "README.md.jinja",
    "LICENSE": "LICENSE.jinja",
    f"{MODULE}/__init__.py": "init.py.jinja",
    f"{MODULE}/server.py": "server.py.jinja",
    f"{MODULE}/client.py": "client.py.jinja",
}


def write_bundle(folder: Path, app: App, code: OwnCode, left_out: list[str]) -> None:
    """Check the app and write it to a new folder.

    Args:
        folder: the folder; its name must be a name for Flower: letters, digits and hyphens.
        app: the config and the origin of the clients' data.
        code: the user's own code that the config needs.
        left_out: the measures that were left out of the config, for the app's README.

    Raises:
        InputError: the config needs a simulation, or the folder exists or has a wrong name.
    """
    name = folder.resolve().name
    if not (name.replace("-", "").isalnum() and name[0].isalpha() and len(name) <= 32):
        raise InputError(
            f"{folder}: should have a name of at most 32 letters, digits and hyphens that begins "
            "with a letter; Flower uses it as the app's name"
        )
    if folder.exists():
        raise InputError(f"{folder}: exists already; name a new folder")
    check_on_nodes(plan(app.config), app.own_data)
    (folder / MODULE).mkdir(parents=True)
    for path, content in bundle_files(name, app, code, left_out).items():
        (folder / path).write_text(content, encoding="utf-8")
    for path, source in code.files.items():
        place = folder / MODULE / FOLDER / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(source)


def bundle_files(name: str, app: App, code: OwnCode, left_out: list[str]) -> dict[str, str]:
    """fedexp's files of an app of this name: path in its folder -> text; nothing is checked."""
    values = {
        "name": name,
        "module": MODULE,
        "fedexp": code_version(),
        "flwr": FLWR,
        "requirement": REQUIREMENT,
        "config": app.config,
        "own_data": app.own_data,
        "left_out": left_out,
        "own": FOLDER,
        "files": sorted(code.files),
        "packages": code.requirements,
        "places": [key for key in PLACES if key in app.config.data.node],
        "what": " ".join(app.overrides) or "the default experiment",
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    made = {path: environment.get_template(each).render(values) for path, each in _FILES.items()}
    return {**made, f"{MODULE}/{FILE}": app.content}
