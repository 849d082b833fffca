"""TLS of ports and of connections between routers and workers, from files that may be replaced while they run.

A port asks its context for the files' latest state at every handshake, a client before it connects: a certificate that
was renewed in place is used without a restart. A state of the files that cannot be used is logged, and the one before
stays in use.
"""

from __future__ import annotations

import logging
import ssl
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from baton_serve.core.process.settings import ProcessSettings

logger = logging.getLogger(__name__)

#: Seconds between two looks at whether files have changed.
LOOK_S = 1.0
#: Seconds that a client may take for a handshake.
HANDSHAKE_S = 10.0


class TlsError(Exception):
    """A file cannot be used. One sentence for a person, which begins with the setting's name."""


class Files:
    """A certificate, its key, and the CA that must have certified the other end.

    ``prefix`` is the prefix of the settings' names, for messages.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None = None, prefix: str = "") -> None:
        self.certificate, self.key, self.ca = certificate, key, ca
        self._settings: Mapping[Path, str] = {
            **({} if ca is None else {ca: "internal_ca_file"}),
            key: f"{prefix}tls_key_file",
            certificate: f"{prefix}tls_certificate_file",
        }

    def stamp(self) -> tuple[object, ...]:
        """A value that changes when one of the files is changed or replaced."""
        return tuple(_stamp(path) for path in self._settings)

    def server(self) -> ssl.SSLContext:
        """A context for a port; with a CA it accepts only clients that the CA has certified. Raises TlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if self.ca is not None:
            self._trust(context, self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client(self) -> ssl.SSLContext:
        """A context for connections, which accepts servers that the CA has certified. Raises TlsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load(context)
        if self.ca is not None:
            self._trust(context, self.ca)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        self._check(self.certificate, b"-----BEGIN CERTIFICATE-----", "a certificate")
        self._check(self.key, b"PRIVATE KEY-----", "a private key")
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except _EncryptedError:
            raise self._error(self.key, "is encrypted; a key without a passphrase is needed") from None
        except (ssl.SSLError, OSError) as error:
            if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
                raise self._error(self.key, f"is not the key of the certificate in {self.certificate}") from None
            raise self._error(self.certificate, f"cannot be used with {self.key}: {_reason(error)}") from None

    def _trust(self, context: ssl.SSLContext, ca: Path) -> None:
        self._check(ca, b"-----BEGIN CERTIFICATE-----", "a certificate")
        try:
            context.load_verify_locations(ca)
        except (ssl.SSLError, OSError) as error:
            raise self._error(ca, f"cannot be used: {_reason(error)}") from None

    def _check(self, path: Path, mark: bytes, what: str) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self._error(path, f"cannot be read: {error.strerror}") from None
        if mark not in content:
            raise self._error(path, f"does not hold {what} in PEM format")

    def _error(self, path: Path, what: str) -> TlsError:
        return TlsError(f"{self._settings[path]}: {path} {what}")


class Latest:
    """The context that ``load`` makes of files, made again when they have changed. The constructor raises TlsError."""

    def __init__(
        self, files: Files, load: Callable[[], ssl.SSLContext], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._load = load
        self._clock = clock
        self._stamp = files.stamp()
        self._looked_s = clock()
        self._context = load()

    def get(self) -> ssl.SSLContext:
        """The context for the next handshake; looks at the files at most once in ``LOOK_S``."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look()
        return self._context

    def _look(self) -> None:
        stamp = self._files.stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._context = self._load()
        except TlsError as error:
            logger.warning("%s; what was there before stays in use", error)
        else:
            logger.info("the certificate in %s is used from now on", self._files.certificate)


def server_context(files: Files, clock: Callable[[], float] = time.monotonic) -> ssl.SSLContext:
    """A context for a port. It uses replaced files from the next handshake on. Raises TlsError."""
    latest = Latest(files, files.server, clock)
    context = latest.get()

    def follow(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        connection.context = latest.get()

    context.sni_callback = follow  # called for every handshake, with and without a name
    return context


class InternalTls:
    """TLS between routers and workers. Where it is set up, they never connect to each other without it.

    An internal port requires a certificate of the CA. A worker's public port does not, because probes and scrapers
    connect to it too; the internal token guards it.
    """

    def __init__(self, files: Files, name: str | None = None) -> None:
        """With ``name``, each certificate must have that name, instead of the host that was connected to.

        Raises TlsError.
        """
        self._files = files
        self._name = name
        self._clients = Latest(files, files.client)

    def server(self, *, internal: bool) -> ssl.SSLContext:
        """A context for a port. Raises TlsError."""
        files = self._files
        return server_context(files if internal else Files(files.certificate, files.key, prefix="internal_"))

    def to(self, host: str) -> dict[str, Any]:
        """Arguments of asyncio's ``create_connection`` and ``open_connection`` for a connection to ``host``."""
        return {"ssl": self._clients.get(), "server_hostname": self._name or host}


def internal_tls(settings: ProcessSettings) -> InternalTls | None:
    """The TLS that the settings set up, or None. Raises TlsError."""
    certificate, key = settings.internal_tls_certificate_file, settings.internal_tls_key_file
    if certificate is None or key is None:
        return None
    return InternalTls(Files(certificate, key, settings.internal_ca_file, "internal_"), settings.internal_tls_name)


def own_certificate_context(certificate: Path) -> ssl.SSLContext:
    """A context for connections to a port on this machine that has this certificate, whatever name is in it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate need not be a CA's
    context.load_verify_locations(certificate)
    return context


def why(error: OSError) -> str:
    """Why a connection with TLS failed, in a few words for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {_reason(error)}"
    return error.strerror or type(error).__name__


class _EncryptedError(Exception):
    """A key needs a passphrase."""


def _no_passphrase() -> str:
    """Raise, where OpenSSL would ask on the terminal."""
    raise _EncryptedError


def _reason(error: OSError) -> str:
    text = getattr(error, "reason", None) or error.strerror or type(error).__name__
    return str(text).lower().replace("_", " ")


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
