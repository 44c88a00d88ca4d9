"""The program that uploads a W&B record while a run writes it.

``python -m fedexp.tracking.wandb_uploader FILE.wandb`` runs W&B's own ``wandb beta sync --live``.
It ends when the record is closed and uploaded, or when its standard input is closed: so it never
outlives the run, even if the run is killed.

With further arguments ENTITY PROJECT RUN, the server may know the run already. Then the program
first asks for it, and prints a line that begins with ``ELSEWHERE`` and names the other folders in
which the run was started, or the line ``DELETED``, without an upload: W&B does not take the id of a
deleted run again, and its own client would try for minutes.
"""

import base64
import json
import os
import signal
import sys
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import wandb
from wandb.cli.cli import cli

from fedexp.tracking.wandb_upload import DELETED, ELSEWHERE

_PATIENCE_S = 5.0
_CONFLICT = 409
_QUESTION = """
mutation UpsertBucket($entity: String, $project: String, $name: String) {
  upsertBucket(input: {entityName: $entity, modelName: $project, name: $name}) {
    bucket { config } inserted
  }
}
"""
"""What W&B's ``Api.create_run`` asks: it makes the run if there is none, and changes no other."""


def _end_with_the_run() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    """Upload the record that the command line names."""
    for each in (signal.SIGINT, signal.SIGTERM):  # they are for the run, which then saves
        signal.signal(each, signal.SIG_IGN)
    Thread(target=_end_with_the_run, daemon=True).start()
    record, *run = sys.argv[1:]
    if run and _was_deleted(Path(record), *run):
        print(DELETED)
        return
    cli(["beta", "sync", "--live", record])


def _was_deleted(record: Path, entity: str, project: str, run: str) -> bool:
    """Whether the server says so; prints the other folders in which the run was started.

    A server that does not answer, or answers in another way, is left to W&B's client.
    """
    own = record.parents[2].resolve()
    try:
        config = _config(entity, project, run)
        starts = json.loads(config or "{}").get("_wandb", {}).get("value", {}).get("e", {}).values()
        others = [each for each in starts if Path(each["root"]).resolve() != own]
        places = sorted({f"{each['host']}:{each['root']}" for each in others})
        if places:
            print(f"{ELSEWHERE}{', '.join(places)}")
    except HTTPError as error:
        return error.code == _CONFLICT and b"deleted" in error.read()
    except Exception:  # whatever it is, W&B's client meets it, too
        return False
    return False


def _config(entity: str, project: str, run: str) -> str | None:
    """The config that the server has of the run, as JSON; raises OSError and others."""
    variables = {"entity": entity or None, "project": project, "name": run}
    body = {"query": _QUESTION, "variables": variables, "operationName": "UpsertBucket"}
    wandb.login(prompt=False, verify=False)
    key = base64.b64encode(f"api:{wandb.setup().settings.api_key}".encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {key}"}
    server = os.environ["WANDB_BASE_URL"]
    question = Request(f"{server}/graphql", json.dumps(body).encode(), headers)
    with urlopen(question, timeout=_PATIENCE_S) as answer:
        found: str | None = json.load(answer)["data"]["upsertBucket"]["bucket"]["config"]
    return found


if __name__ == "__main__":
    main()
