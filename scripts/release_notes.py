"""Check that a tag can be released, and print the changelog's section of its version.

    python scripts/release_notes.py v0.3.0

Uses the standard library only. The exit code is 1 if the tag is not the version of pyproject.toml
and CITATION.cff, if the changelog has no section with a date for it, or if the address of the
repository is still the placeholder.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDER = "OWNER/fedexp"


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python scripts/release_notes.py TAG")
    print(notes(sys.argv[1], ROOT))


def notes(tag: str, root: Path) -> str:
    """The section of the tag's version, without its heading."""
    version = tag.removeprefix("v")
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(), flags=re.M)
    for file, found in (
        ("pyproject.toml", project["version"]),
        ("CITATION.cff", cited and cited[1]),
    ):
        if found != version:
            raise SystemExit(f"{tag}: {file} has the version {found}")
    if PLACEHOLDER in project["urls"]["Source"]:
        raise SystemExit(f"{tag}: pyproject.toml has {PLACEHOLDER}, no address of a repository")
    changes = (root / "CHANGELOG.md").read_text()
    section = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |^\[|\Z)",
        changes,
        flags=re.M | re.S,
    )
    if section is None:
        raise SystemExit(f"{tag}: CHANGELOG.md has no line '## [{version}] - YEAR-MONTH-DAY'")
    return section[1].strip()


if __name__ == "__main__":
    main()
