"""A router's ``/admin`` as the operator's commands meet it: real HTTP, answers with fields that the router has."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from baton_serve.core.protocol.errors import ApiError, AuthenticationError, ConflictError, NotFoundError, UpstreamError
from baton_serve.core.protocol.ids import request_of
from baton_serve.core.protocol.worker import Role
from baton_serve.router.admin.workers import DrainAnswer
from baton_serve.router.request.states import State

TOKEN = "sesame"


def request(request_id: str, state: State = State.DECODING, **changes: Any) -> dict[str, Any]:
    """One live request, as the router shows it."""
    return {
        "id": request_id,
        "router": request_id[:12],
        "state": state,
        "age_ms": 2500.0,
        "endpoint": "/v1/chat/completions",
        "model": "demo",
        "user": "",
        "stream": True,
        "priority": 0,
        "prefill_worker": "prefill-worker-1",
        "decode_worker": None,
        "lease_id": None,
        "lease_remaining_ms": None,
        "num_tokens": 3,
        "phases_ms": {"queued": 1.0, "prefilling": 20.0},
        **changes,
    }


def ended(request_id: str, outcome: State = State.FAILED, **changes: Any) -> dict[str, Any]:
    """One request that is over, as the router shows it."""
    return {
        "id": request_id,
        "router": request_id[:12],
        "outcome": outcome,
        "ended_in": "held",
        "ended_ms_ago": 1500.0,
        "total_ms": 2500.0,
        "code": "no_room",
        "error": "No worker had room in time.",
        "model": "demo",
        "user": "",
        "prefill_worker": "prefill-worker-1",
        "decode_worker": None,
        "num_tokens": 1,
        **changes,
    }


def worker(worker_id: str, role: Role = Role.PREFILL, **changes: Any) -> dict[str, Any]:
    """One worker, as the router shows it."""
    return {
        "id": worker_id,
        "name": "",
        "url": "http://127.0.0.1:1",
        "role": role,
        "kind": "baton",
        "version": "",
        "problem": "",
        "side_channel": "",
        "engine_id": "engine",
        "models": ["demo"],
        "tp": 1,
        "compatibility_hash": "hash",
        "healthy": True,
        "draining": False,
        "num_failures": 0,
        "in_flight": 2,
        "occupied": 2,
        "limit": 8,
        "running": 1,
        "waiting": 1,
        "reading": 0,
        "free_blocks": 60,
        "cached_blocks": 20,
        "pinned_blocks": 15,
        "leased_blocks": 5,
        "leases": 1,
        "handshakes": {"connecting": 0, "connected": 1, "failed": 0, "errors": {}},
        **changes,
    }


class ScriptedRouter:
    """Answers what it is told to and remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        #: Routers that did not answer this one.
        self.unreachable: list[str] = []
        self.workers: list[dict[str, Any]] = []
        self.lost: list[dict[str, Any]] = []
        self.can_drain = True
        #: The workers have internal ports.
        self.can_tell = True
        #: Events of ``/admin/live``; None: this router has no such call.
        self.live: list[str] | None = None
        #: (path, body) of every POST.
        self.posts: list[tuple[str, Any]] = []
        self.url = ""

    def get(self, path: str) -> Any:
        failed = [row for row in self.ended if row["outcome"] == State.FAILED]
        answers: dict[str, Any] = {
            "/admin/requests": {"requests": self.requests, "unreachable_routers": self.unreachable},
            "/admin/requests/ended": {"ended": self.ended, "unreachable_routers": self.unreachable},
            "/admin/requests/ended?outcome=failed": {"ended": failed},
            "/admin/workers": {"workers": self.workers, "lost": self.lost},
        }
        if path not in answers:
            raise NotFoundError(f"Unknown path: GET {path}", code="unknown_url")
        return answers[path]

    def post(self, path: str, body: Any) -> Any:
        self.posts.append((path, body))
        parts = path.strip("/").split("/")
        if path == "/admin/abort":
            matching = [row["id"] for row in self.requests if row["state"] == body.get("state", row["state"])]
            return {"aborted": matching, "unreachable_routers": self.unreachable}
        if parts[:2] == ["admin", "requests"] and parts[3:] == ["abort"]:
            return {"aborted": [self._meant(request_of(parts[2]))]}
        if self.can_drain and parts[:2] == ["admin", "workers"] and parts[3:] in (["drain"], ["resume"]):
            answer = DrainAnswer(id=parts[2], draining=parts[3] == "drain", told=self.can_tell)
            return asdict(answer)
        raise NotFoundError(f"Unknown path: POST {path}", code="unknown_url")

    def _meant(self, given: str) -> str:
        """As ``router/admin/ids.py`` has it."""
        found = [row["id"] for row in self.requests if row["id"].startswith(given)]
        if self.unreachable and len(given) < 8:
            raise UpstreamError("No answer from a router, which may have it.", code="router_unreachable")
        if not found:
            raise NotFoundError("No live request has that id.", code="request_not_found")
        if len(found) > 1:
            raise ConflictError(f"'{given}' is the beginning of {len(found)} requests' ids.", code="ambiguous_id")
        return str(found[0])


@contextlib.contextmanager
def serving(router: ScriptedRouter) -> Iterator[ScriptedRouter]:
    """Serve it on a loopback port until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(router))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    router.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield router
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(router: ScriptedRouter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/admin/live" and router.live is not None:
                self._send(200, "".join(router.live).encode())
            else:
                self._answer(lambda: router.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"null")
            self._answer(lambda: router.post(self.path, body))

        def _answer(self, make: Any) -> None:
            try:
                if self.headers.get("authorization") != f"Bearer {TOKEN}":
                    raise AuthenticationError("Incorrect API key provided.")
                self._send(200, json.dumps(make()).encode())
            except ApiError as error:
                self._send(error.status, error.to_json())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Tests are quiet."""

    return Handler
