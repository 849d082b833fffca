"""nginx, one hop to D and none to P: what passing bytes on costs at least."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.router.harness.flow import Flow
from bench.router.routers.router import Command, Peer, Place, RouterError

CONFIG = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  tcp_nodelay on;
  keepalive_requests 10000000;
  client_max_body_size 64m;
  client_body_buffer_size 256k;
  client_body_temp_path {folder}/nginx-body;
  proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi;
  uwsgi_temp_path {folder}/nginx-uwsgi;
  scgi_temp_path {folder}/nginx-scgi;
  upstream decode {{ {servers} keepalive 512; keepalive_requests 10000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://decode;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Nginx(Peer):
    """The nginx of PATH, else the one that was fetched into ``peers``."""

    peers: Path
    name: str = "nginx"
    flow: ClassVar[Flow] = Flow.ONE_HOP

    @property
    def installed(self) -> bool:
        """See ``Peer``."""
        return self.program is not None

    def fetch(self) -> None:
        """Unpack Debian's package, which runs from anywhere."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run(["apt-get", "download", "-qq", "nginx"], self.folder)
        for package in self.folder.glob("*.deb"):
            self._run(["dpkg-deb", "-x", package.name, "."], self.folder)

    @property
    def program(self) -> str | None:
        """The program; None if there is none."""
        return shutil.which("nginx") or shutil.which(self.folder / "usr" / "sbin" / "nginx")

    @property
    def folder(self) -> Path:
        """Where it is fetched to."""
        return self.peers / "nginx"

    @contextmanager
    def command(self, place: Place) -> Iterator[Command]:
        """The command; its settings are in a file. Raises RouterError."""
        if self.program is None:
            raise RouterError("there is no nginx")
        servers = " ".join(f"server 127.0.0.1:{port};" for port in place.engines.decode)
        config = place.folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=place.folder, port=place.port, servers=servers))
        yield Command([self.program, "-p", str(place.folder), "-c", str(config)])
