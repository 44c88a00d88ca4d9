"""A small server that speaks enough of W&B's protocol for its client, and fails when it is told to.

It keeps the rows of each run's history, by run id. Artifacts and files are taken and forgotten.
"""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

_RUN = {
    "id": "1",
    "name": "run",
    "displayName": "run",
    "description": None,
    "config": None,
    "sweepName": None,
    "historyLineCount": 0,
    "project": {"id": "1", "name": "test", "entity": {"id": "1", "name": "lab"}},
}
_USER = {"id": "1", "entity": "lab", "username": "lab", "teams": {"edges": []}}
_PROJECT = {
    "__typename": "Project",
    "id": "1",
    "name": "test",
    "entityName": "lab",
    "createdAt": "2026-01-01T00:00:00",
    "isBenchmark": False,
    "user": None,
}
_ARTIFACT = {"id": "1", "state": "COMMITTED", "artifactSequence": {"latestArtifact": {"id": "1"}}}


class WandbServer:
    """The server, with ``address``.

    Attributes:
        status: the status of every answer; 200 means that it works.
        delay_s: seconds before every answer.
        refused: the runs that may not be written.
        deleted: the runs that were deleted; as on W&B, their ids cannot be used again.
        begun: the runs whose upload has begun.
        rows: run id -> step -> the row of the history, as a dict.
        configs: run id -> the config as JSON, with the places in which the run was started.
        views: the specifications of the saved views, in order; the only project is lab/test.
    """

    def __init__(self) -> None:
        self.status, self.delay_s = 200, 0.0
        self.begun: set[str] = set()
        self.refused: set[str] = set()
        self.deleted: set[str] = set()
        self.rows: dict[str, dict[int, dict[str, Any]]] = {}
        self.configs: dict[str, str | None] = {}
        self.views: list[dict[str, Any]] = []
        self._port = 0
        self.start()

    def start(self) -> None:
        """Listen, after ``die`` at the same address as before."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
        self._port = self._server.server_address[1]
        self.address = f"http://127.0.0.1:{self._port}"
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def die(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    def reply(self, path: str, body: bytes) -> tuple[int, Any]:
        """The status and the answer to a request."""
        status = self.status
        time.sleep(self.delay_s)
        if status != 200:
            return status, {"errors": [{"message": f"no ({status})"}]}
        if path == "/graphql":
            return self._graphql(json.loads(body))
        if path.endswith("/file_stream"):
            self._keep(path.split("/")[-2], json.loads(body))
        return 200, {}

    def _graphql(self, question: dict[str, Any]) -> tuple[int, Any]:
        name = (question.get("variables") or {}).get("name")
        if name in self.refused:
            self.begun.add(name)
            return 403, {"errors": [{"message": f"permission denied for {name}"}]}
        if name in self.deleted:
            told = f"run lab/test/{name} was previously created and deleted; try a new run name"
            self.begun.add(name)
            return 409, {"errors": [{"message": told}]}
        return 200, {"data": self._data(question)}

    def _data(self, question: dict[str, Any]) -> dict[str, Any]:
        asked, given = question.get("operationName"), question.get("variables") or {}
        if asked == "UpsertBucket":
            self.begun.add(given["name"])
            known = self.configs.get(given["name"])
            self.configs[given["name"]] = given.get("config") or known
            bucket = _RUN | {"name": given["name"], "config": self.configs[given["name"]]}
            return {"upsertBucket": {"bucket": bucket, "inserted": known is None}}
        if asked == "Viewer":
            return {"viewer": _USER}
        if "query GetProject(" in question["query"]:
            is_known = (given["entity"], given["name"]) == ("lab", "test")
            return {"project": _PROJECT if is_known else None}
        if "mutation UpsertView2" in question["query"]:
            self.views.append({**given, "spec": json.loads(given["spec"])})
            return {"upsertView": {"view": {"id": "1", "name": given["name"]}, "inserted": True}}
        if asked == "CreateRunFiles":
            files = [
                {"name": name, "uploadUrl": f"{self.address}/files/{name}"}
                for name in given["files"]
            ]
            made = {"runID": "1", "uploadHeaders": [], "files": files}
            return {"createRunFiles": made}
        if asked == "CreateArtifact":
            return {"createArtifact": {"artifact": _ARTIFACT}}
        return {}

    def _keep(self, run: str, sent: dict[str, Any]) -> None:
        history = (sent.get("files") or {}).get("wandb-history.jsonl", {"content": []})
        rows = self.rows.setdefault(run, {})
        for each in map(json.loads, history["content"]):
            rows[each["_step"]] = {key: each[key] for key in each if not key.startswith("_")}


def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """For a fixture: yield a server that W&B's client uses."""
    started = WandbServer()
    monkeypatch.setenv("WANDB_BASE_URL", started.address)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    yield started
    started.status = 401  # what still asks gives up
    started.die()


def _handler(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, found = server.reply(self.path, body)
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            # A dead server keeps no connection open.
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815  named by http.server

    return Handler
