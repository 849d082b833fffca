"""The head of a request while it comes, with bounds on what a client can make its connection keep of it. Pure."""

from __future__ import annotations

import re
from typing import Final

from baton_serve.core.protocol.errors import BadRequestError, HeadTooLargeError, NotImplementedHereError

#: RFC 3986: a name or an address, and a port.
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
#: A request line whose only fault may be its method (RFC 9110: a token).
_REQUEST_LINE: Final = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]{1,40}) [^ \r\n]+ HTTP/1\.[01]\r?\n")

#: Headers with a key. A request has one of each: of two, a proxy in front might check one and this port the other.
_KEYS: Final = frozenset({b"authorization", b"x-api-key"})
#: Headers that are looked at as they come.
_LOOKED_AT: Final = frozenset({b"host", b"expect", b"transfer-encoding"}) | _KEYS


class Head:
    """The head under way on a connection. The parser calls ``on_url`` and ``on_header``."""

    __slots__ = (
        "_host",
        "_max_lines",
        "_num_hosts",
        "_num_late_lines",
        "expects_100",
        "has_begun",
        "headers",
        "is_awaited",
        "max_bytes",
        "num_bytes",
        "piece_bytes",
        "quiet_bytes",
        "url",
    )

    def __init__(self, max_bytes: int, max_lines: int) -> None:
        self.max_bytes = max_bytes
        self._max_lines = max_lines
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        #: Whether the client waits for a 100 before it sends the body.
        self.expects_100 = False
        #: Whether a head is awaited or arriving; otherwise a body is.
        self.is_awaited = True
        #: Whether a request has ever begun; blank lines before the first one are none.
        self.has_begun = False
        #: Bytes of the head, counted before parsing; ``piece_bytes``: of the piece that came last.
        self.num_bytes = 0
        self.piece_bytes = 0
        #: Bytes since the last piece of a body: sizes of chunks, and lines after the last chunk.
        self.quiet_bytes = 0
        self._num_late_lines = 0
        self._num_hosts = 0
        #: The last Host value that was checked: clients repeat it.
        self._host = b""

    def begin(self) -> None:
        """Another request begins."""
        self.has_begun = True
        self.url = b""
        self.headers = []
        self.expects_100 = False
        self._num_hosts = 0

    def end(self) -> None:
        """The head is complete, and a body follows."""
        self.is_awaited = False
        self.quiet_bytes = self._num_late_lines = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line. Lines after a body are counted and dropped. Raises ApiError."""
        if not self.is_awaited:
            self._num_late_lines += 1
            if self._num_late_lines > self._max_lines:
                raise self.too_large()
            return
        name, value = name.lower(), value.strip()
        if name in _LOOKED_AT:
            self._look_at(name, value)
        self.headers.append((name, value))
        if len(self.headers) > self._max_lines:
            raise self.too_large()

    def _look_at(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._num_hosts += 1
            if value != self._host:
                if _HOST.fullmatch(value) is None:
                    raise BadRequestError("The Host header is no name or address.", code="invalid_host")
                self._host = value
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise NotImplementedHereError(
                    "The only Transfer-Encoding that is supported here is 'chunked': send the body as it is.",
                    param="transfer-encoding",
                    code="unsupported_transfer_encoding",
                )
        elif name in _KEYS:
            for before, _ in self.headers:
                if before == name:
                    raise BadRequestError("A request has one key.", code="invalid_http")
        elif value.lower() == b"100-continue":
            self.expects_100 = True

    def check(self, version: str) -> None:
        """Check the whole head of a request in this version of HTTP. Raises BadRequestError, and HeadTooLargeError for
        one that came in one piece, which was not counted before parsing.
        """
        if self.piece_bytes > self.max_bytes:
            num_bytes = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
            if num_bytes > self.max_bytes:
                raise self.too_large()
        if version not in ("1.1", "1.0"):
            raise not_http()
        if self._num_hosts != 1 and (self._num_hosts or version != "1.0"):
            raise BadRequestError("A request has one Host header.", code="invalid_host")
        if version == "1.0":
            self.expects_100 = False  # clients of HTTP/1.0 would take the 100 for their answer

    def without_upgrade(self, method: bytes, http_version: str) -> bytes:
        """The same head without its ``Upgrade`` lines. A parser has read it, so there is no line end in a line."""
        lines = [b"%b: %b\r\n" % line for line in self.headers if line[0] != b"upgrade"]
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, http_version.encode(), b"".join(lines))

    def too_large(self) -> HeadTooLargeError:
        """The error for a head beyond the bounds."""
        return HeadTooLargeError(f"The head of a request may have {self.max_bytes} bytes in {self._max_lines} lines.")


def unknown_method(head: bytes) -> NotImplementedHereError | None:
    """The error for a head of HTTP/1 with a method that the parser does not know; None: it is not even that."""
    found = _REQUEST_LINE.match(head)
    if found is None:
        return None
    method = found[1].decode()
    return NotImplementedHereError(f"The method '{method}' is not supported here.", code="unsupported_method")


def not_http() -> BadRequestError:
    """The error for what is no request of HTTP/1."""
    return BadRequestError("This is not a request in HTTP/1.1.", code="invalid_http")
