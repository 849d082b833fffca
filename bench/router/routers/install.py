"""Fetches peers that are not there, into a folder of theirs: nothing of the system changes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from bench.router.routers.nginx import Nginx
from bench.router.routers.router import RouterError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.router.routers.wheels import Wheel

INSTALL_TIMEOUT_S = 600.0


def install(peer: Nginx | Wheel) -> None:
    """Fetch a peer if it is not there. Raises RouterError."""
    if peer.installed:
        return
    if isinstance(peer, Nginx):
        _install_nginx(peer)
    else:
        _install_wheel(peer)
    if not peer.installed:
        raise RouterError(f"{peer.name}: was installed, and is not there")


def _install_nginx(nginx: Nginx) -> None:
    """Unpack Debian's package, which runs from anywhere."""
    nginx.folder.mkdir(parents=True, exist_ok=True)
    _run(nginx.name, ["apt-get", "download", "-qq", "nginx"], nginx.folder)
    for package in nginx.folder.glob("*.deb"):
        _run(nginx.name, ["dpkg-deb", "-x", package.name, "."], nginx.folder)


def _install_wheel(wheel: Wheel) -> None:
    folder = wheel.peers / wheel.environment
    wheel.peers.mkdir(parents=True, exist_ok=True)
    _run(wheel.name, [sys.executable, "-m", "venv", str(folder)], wheel.peers)
    pip = [str(wheel.bin / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel.requirement]
    _run(wheel.name, pip, wheel.peers)


def _run(name: str, argv: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RouterError(f"{name}: cannot be installed: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason is given"]
        raise RouterError(f"{name}: cannot be installed: {lines[-1]}")
