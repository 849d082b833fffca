"""The admin token that ``baton up`` makes where nobody gave it one: a file that only its user can read, for each port.

Another user of the machine reaches the router's port too, and must neither read prompts there nor add a worker.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from baton_serve.baton.processes.private_folder import PrivateFolderError, make_private, private_folder, remove
from baton_serve.core.net.access.hosts import is_loopback
from baton_serve.core.protocol.addresses import HTTP_PORTS


def token_path(folder: Path, port: int) -> Path:
    """The file of the ``baton up`` that serves on this port."""
    return folder / f"up-{port}.token"


@contextmanager
def kept_token(path: Path, token: str) -> Iterator[None]:
    """Have the file while inside. Raises PrivateFolderError."""
    make_private(path.parent)
    try:
        path.unlink(missing_ok=True)  # of a ``baton up`` that was killed
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
    except OSError as error:
        raise PrivateFolderError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield
    finally:
        if _read(path) == token:
            remove(path)


def own_token(url: str, environ: Mapping[str, str]) -> str | None:
    """The token of the ``baton up`` of this user on this machine that serves at this URL; None if there is no such one.

    A shell that was opened another way may have another ``XDG_RUNTIME_DIR``.
    """
    parts = urlsplit(url)
    if not is_loopback(parts.hostname or ""):
        return None
    port = parts.port or HTTP_PORTS[parts.scheme]
    found = (_read(token_path(folder, port)) for folder in (private_folder(environ), private_folder({})))
    return next(filter(None, found), None)


def _read(path: Path) -> str | None:
    """What is in the file; None unless it is of this user alone: the folder may be another user's."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
            return file.read() if is_own else None
    except OSError:
        return None
