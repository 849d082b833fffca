"""Builds the images, also from wheels of this machine."""

from __future__ import annotations

import contextlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from deploy.drill.deployment import compose_file, docker, project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def build(wheels: Path | None, host_network: bool) -> None:
    """Build what the compose file builds and say how large it is. Raises CalledProcessError.

    A build sees no folder but its context. So ``wheels`` are served on this machine's loopback address, and the build
    has the host's network then.
    """
    content = compose_file()
    built = [service for service in content["services"].values() if "build" in service]
    if wheels or host_network:
        for service in built:
            service["build"]["network"] = "host"
    with contextlib.ExitStack() as stack:
        environ = {"PIP_FIND_LINKS": stack.enter_context(served(wheels))} if wheels else {}
        stack.enter_context(project(content)).run("build", environ=environ)
    for image in sorted({service["image"] for service in built}):
        size = int(docker("image", "inspect", "-f", "{{.Size}}", image))
        print(f"{image}: {size / 1e6:.0f} MB", flush=True)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a list of the folder's files while inside; yields its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing: pip says itself what it fetches."""
