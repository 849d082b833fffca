"""What ``baton up`` and ``baton worker`` check before they start anything."""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import redis

from baton_serve.core.net.tls import TlsError
from baton_serve.core.redis_client import cluster_complaint, trying_once
from baton_serve.router.settings import RouterSettings

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
#: The packages of the extra ``worker``; the name for pip is also the name for import.
WORKER_PACKAGES = (
    "accelerate",
    "llguidance",
    "nixl",
    "numba",
    "numpy",
    "peft",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
)
#: Longest wait for a connection to Redis, and for its answer, seconds.
REDIS_TIMEOUT_S = 3.0


class PreflightError(Exception):
    """Nothing can be started. The message is one line that says what to change."""


def check_worker_packages() -> None:
    """Raises PreflightError if packages that workers need are not installed. Imports none of them."""
    missing = [name for name in WORKER_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise PreflightError(
            f"a worker needs packages that are not installed ({', '.join(missing)}): pip install 'baton-serve[worker]'"
        )


def check_port(host: str, port: int) -> None:
    """Raises PreflightError if no socket can listen on the address."""
    family, address = _resolve(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, so that TIME_WAIT does not matter
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise PreflightError(
                f"cannot listen on {host} port {port}: {reason}; choose another with --port"
            ) from error


def check_model(model: str) -> bool:
    """Whether the model is a folder; otherwise it may be a hub id. Raises PreflightError when it can be neither."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise PreflightError(f"{model} is not a model: it has no config.json")
        return True
    if folder.exists():
        raise PreflightError(f"{model} is a file; a model is a folder or a Hugging Face hub id")
    if not _HUB_ID.fullmatch(model) or model.startswith((".", "~", "/")):
        raise PreflightError(f"there is no model at {model}")
    return False


def check_adapters(folders: Mapping[str, str]) -> None:
    """Raises PreflightError when a folder has no adapter. ``folders``: by the adapters' names."""
    for name, folder in folders.items():
        if not Path(folder, "adapter_config.json").is_file():
            raise PreflightError(f"there is no adapter {name} in {folder}: it has no adapter_config.json")


def check_tls(settings: RouterSettings) -> None:
    """Raises PreflightError when a certificate or a key cannot be used. Workers use the same files as the router."""
    from baton_serve.router.edge.tls import load_tls

    try:
        load_tls(settings)
    except TlsError as error:
        raise PreflightError(str(error)) from None


def check_redis(url: str) -> None:
    """Raises PreflightError when no Redis answers there, or one that Baton cannot use. The message omits the URL, which
    may hold a password.
    """
    try:
        with trying_once(url, REDIS_TIMEOUT_S) as client:
            client.ping()
        complaint = cluster_complaint(url, REDIS_TIMEOUT_S)
    except (ValueError, TypeError):  # an option in the URL
        raise PreflightError("redis_url is not understood by the Redis client") from None
    except (redis.RedisError, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PreflightError(f"the Redis of redis_url does not answer: {reason}") from None
    if complaint is not None:
        raise PreflightError(complaint)


def _resolve(host: str, port: int) -> tuple[int, tuple[str, int]]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise PreflightError(f"cannot listen on {host}: {(error.strerror or str(error)).lower()}") from error
    return family, (str(address[0]), int(address[1]))
