"""Stand-ins for the router and the workers, and ``baton up`` started with them: same flags, no model.

``stand_in.py up [flags of baton up]`` is the command line with ``COMMAND`` pointing at this file.
``stand_in.py router|worker ... --status-fd N`` is a child. It takes SIGTERM as the real ones do and then appends its
name to the file in ``STAND_IN_STOPPED``, as it does to the one in ``STAND_IN_SERVING`` when it is ready.
``STAND_IN_<NAME>`` (dashes as underscores) makes it misbehave:
``deaf`` ignores SIGTERM; ``silent`` never is ready.
``STAND_IN_BROKEN`` names a file: once it exists nobody can start any more.
``STAND_IN_FAILING`` is the name of one child that cannot start.
"""

from __future__ import annotations

import http.server
import os
import signal
import sys
import threading
from pathlib import Path

from baton_serve.core.protocol.status import Failed, Progress, Ready, encode


def main() -> int:
    kind, *rest = sys.argv[1:]
    if kind == "up":
        return up(rest)
    flags = dict(zip(rest[::2], rest[1::2], strict=True))
    return child(kind, flags)


def up(arguments: list[str]) -> int:
    from baton_serve.baton import cli
    from baton_serve.baton.up import up as up_main

    run = up_main.run
    up_main.run = lambda settings: run(settings, (sys.executable, __file__))
    return cli.main(["up", *arguments])


def child(kind: str, flags: dict[str, str]) -> int:
    role = flags.get("--role", kind)
    fd = int(flags["--status-fd"])
    behaviour = os.environ.get(f"STAND_IN_{role.upper()}", "")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if behaviour == "deaf" else stop.set())
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
    os.write(fd, encode(Progress(f"loading {role}")))
    if Path("/proc/self/fd/1").readlink().stem == os.environ.get("STAND_IN_FAILING"):
        os.write(fd, encode(Failed("there is no such architecture")))
        return 1
    if Path(os.environ.get("STAND_IN_BROKEN", "/nowhere")).exists():
        os.write(fd, encode(Failed("it broke")))
        return 1
    if behaviour == "silent":
        _wait(stop)
        return 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(flags.get("--port", 0))), Models)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.write(fd, encode(Ready(f"http://127.0.0.1:{server.server_port}")))
    _note("STAND_IN_SERVING", role)
    _wait(stop)
    _note("STAND_IN_STOPPED", role)
    return 0


def _wait(stop: threading.Event) -> None:
    """Wait in small steps: a signal that the system gives to the server's thread does not wake this one."""
    while not stop.wait(0.05):
        pass


def _note(variable: str, role: str) -> None:
    with Path(os.environ[variable]).open("a") as file:
        file.write(f"{role}\n")


class Models(http.server.BaseHTTPRequestHandler):
    """``GET /v1/models``."""

    def do_GET(self) -> None:
        body = b'{"object": "list", "data": [{"id": "stand-in", "object": "model"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    sys.exit(main())
