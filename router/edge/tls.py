"""The router's two kinds of TLS: with clients, and between routers and workers."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from baton_serve.core.net.tls import Files, InternalTls, internal_tls, server_context
from baton_serve.core.protocol.worker import WorkerStatus
from baton_serve.router.pool.discovery import Follower
from baton_serve.router.settings import RouterSettings

log = logging.getLogger("baton.router")


@dataclass(frozen=True)
class RouterTls:
    """TLS for clients (``public``) and between routers and workers (``internal``); None: not set up."""

    public: ssl.SSLContext | None = None
    internal: InternalTls | None = None


def load_tls(settings: RouterSettings) -> RouterTls:
    """Load the certificates and keys that the settings name. Raises TlsError."""
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    public = None if certificate is None or key is None else server_context(Files(certificate, key))
    return RouterTls(public, internal_tls(settings))


class OnlyTls:
    """Passes on the registry's list without the workers that do not speak TLS, so these are never sent anything."""

    def __init__(self, follower: Follower[WorkerStatus]) -> None:
        self._follower = follower
        self._refused: set[str] = set()

    def apply(self, entries: Iterable[WorkerStatus]) -> None:
        """Pass on the list, without workers that do not speak TLS; log each such worker once."""
        secure, plain = [], set()
        for status in entries:
            if _speaks_tls(status):
                secure.append(status)
            else:
                plain.add(status.record.worker_id)
        for worker_id in sorted(plain - self._refused):
            log.warning("worker %s announces http://, but TLS is set up here: it is left out", worker_id)
        self._refused = plain
        self._follower.apply(secure)


def _speaks_tls(status: WorkerStatus) -> bool:
    record = status.record
    return all(url.startswith("https://") for url in (record.url, record.internal_url) if url)
