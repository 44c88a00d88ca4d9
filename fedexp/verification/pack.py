"""Packs runs into an artefact: records, own code, a report, and how to check them."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jinja2
import yaml

from fedexp.deployment.flower.record import FILE as FEDERATION
from fedexp.errors import InputError, readable
from fedexp.reporting.ablation_rows import FILE as ABLATION
from fedexp.reporting.ablation_rows import read_plain
from fedexp.reporting.files import DEFAULTS, write, write_contents
from fedexp.reporting.runs import UNREADABLE, read_runs, read_yaml
from fedexp.reporting.sources import FILE_NAME as SOURCES
from fedexp.reporting.sources import arguments_of, made_again, sources
from fedexp.state.run_folder import CHECKPOINTS, DATA, METRICS, PARTITION, SUMMARY, read_small_file
from fedexp.state.run_folder import FILE_NAME as IDENTITY
from fedexp.tracking.environment import LIBRARIES
from fedexp.tracking.origin import FILE_NAME as ORIGIN
from fedexp.tracking.summary import config_hash
from fedexp.verification.archive import write_archive
from fedexp.verification.claims import Claim, contradictions, read_claim
from fedexp.verification.neutral import neutral, neutral_identity, told_names
from fedexp.verification.own_code import own_code
from fedexp.verification.places import KEYS, places
from fedexp.version import code_version

MANIFEST = "artefact.json"
RUNS, CODE, REPORT = "runs", "code", "report"
_SWEEP = "multirun.yaml"
_KEPT = (METRICS, PARTITION, DATA, ORIGIN, FEDERATION)
"""Files that are packed as they are; they name no machine."""


def pack(source: Path, target: Path, with_checkpoints: bool = False) -> list[str]:
    """Pack the runs in or below ``source``; return the names of the packed files.

    Args:
        source: the folder of a run or of a sweep.
        target: the zip file, which must not exist.
        with_checkpoints: whether the trained weights are packed, too.

    Raises:
        InputError: a run is damaged or contradicts itself, or a file tells of this machine.
    """
    if target.exists():
        raise InputError(f"{target}: exists already; name a new file")
    runs, problems = read_runs([source])
    if not runs or problems:
        raise InputError(problems[0] if problems else f"{source}: no run in it")
    files: dict[str, bytes] = {}
    for run in runs:
        claim = read_claim(run.folder)
        if wrong := next(contradictions(claim), None):
            raise InputError(f"{run.place}: {wrong}; it would not verify")
        name = run.folder.relative_to(source).as_posix()
        place = RUNS if name == "." else f"{RUNS}/{name}"
        files |= {f"{place}/{n}": each for n, each in _records(claim, with_checkpoints)}
        files |= {f"{CODE}/{n}": text.encode() for n, text in (own_code(claim) or {}).items()}
    files |= _sweep(source) | {"requirements.txt": _requirements(claim)}
    files |= _report(files)
    files["README.md"] = _readme(files, target.name, claim)
    for name, content in files.items():
        for told in told_names(content):
            raise InputError(f"{name}: tells {told}; change the file, or its name for the data")
    digests = {name: hashlib.sha256(each).hexdigest() for name, each in sorted(files.items())}
    manifest = {"format": 1, "fedexp": code_version(), "files": digests}
    files[MANIFEST] = json.dumps(manifest, indent=1).encode() + b"\n"
    write_archive(target, files)
    return sorted(files)


def _records(claim: Claim, with_checkpoints: bool) -> Iterator[tuple[str, bytes]]:
    """(Name, content) of each packed file of a run."""
    folder = claim.run.folder
    for name in _KEPT:
        if (folder / name).is_file():
            yield name, (folder / name).read_bytes()
    identity = json.loads(read_small_file(folder / IDENTITY))
    packed = neutral_identity(identity)
    yield IDENTITY, json.dumps(packed).encode()
    yield ".hydra/overrides.yaml", yaml.safe_dump(neutral(list(claim.run.overrides))).encode()
    if claim.run.summary is not None:
        summary = neutral(json.loads(read_small_file(folder / SUMMARY)))
        if "config_hash" in summary and packed["config"] != identity["config"]:
            summary["config_hash"] = config_hash(packed["config"])
        yield SUMMARY, json.dumps(summary, indent=2).encode()
    for path in sorted((folder / CHECKPOINTS).glob("*.pt")) if with_checkpoints else ():
        yield f"{CHECKPOINTS}/{path.name}", path.read_bytes()


def _sweep(source: Path) -> dict[str, bytes]:
    """The sweep's files, with what reports and contests read of them."""
    plain = read_plain(source)
    files = {f"{RUNS}/{ABLATION}": json.dumps(plain).encode()} if plain else {}
    if not (source / _SWEEP).is_file():
        return files
    with readable(source / _SWEEP, *UNREADABLE):
        found = read_yaml(source / _SWEEP)["hydra"]
        kept: dict[str, Any] = {
            "overrides": found["overrides"],
            "sweeper": found["sweeper"],
            "runtime": {"choices": found["runtime"]["choices"]},
        }
    return {**files, f"{RUNS}/{_SWEEP}": yaml.safe_dump({"hydra": neutral(kept)}).encode()}


def _report(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A report about the packed runs, made where they will be unpacked."""
    with TemporaryDirectory() as temporary, chdir(temporary):
        write_contents(files, Path())
        arguments = arguments_of([Path(RUNS)], DEFAULTS)
        made = made_again(arguments)
        written = write(made, Path(REPORT))
        content = sources(made, Path(REPORT), written, arguments)
        found = {path.as_posix(): path.read_bytes() for path in Path(REPORT).rglob("*.*")}
        return {**found, f"{REPORT}/{SOURCES}": content}


def _requirements(claim: Claim) -> bytes:
    """The versions with which the run was made, for pip."""
    if not claim.origins:
        return b""
    about = claim.origins[-1]
    found = {"fedexp": about["fedexp"]["version"], **about["environment"]}
    # Without the build, such as +cu126: PyPI has no such versions.
    known = {n: found[n].partition("+")[0] for n in ("fedexp", *LIBRARIES) if found.get(n)}
    lines = [f"{name}=={version}\n" for name, version in known.items()]
    return "".join(lines).encode()


def _readme(files: Mapping[str, bytes], name: str, claim: Claim) -> bytes:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    runs = [json.loads(each) for n, each in files.items() if n.endswith(f"/{IDENTITY}")]
    named = {key for run in runs for key in places(run["config"])}
    values = {
        "name": name,
        "code": sorted(n for n in files if n.startswith(f"{CODE}/")),
        "places": [key for key in KEYS if key in named],
        "about": claim.origins[-1] if claim.origins else None,
        "words": [w for w in neutral(list(claim.run.overrides)) if not w.startswith("hydra.")],
    }
    return environment.get_template("artefact.md.jinja").render(values).encode()
