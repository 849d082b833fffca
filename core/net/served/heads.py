"""Heads of requests: what a port demands of single lines, and a head without its offer to upgrade. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from baton_serve.core.protocol.errors import BadRequestError, NotImplementedHereError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: RFC 3986: a name or an address, and a port.
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
#: A request line whose only fault may be its method (RFC 9110: a token).
_REQUEST_LINE = re.compile(rb"([A-Za-z0-9!#$%&'*+.^_`|~-]{1,40}) [^ \r\n]+ HTTP/1\.[01]\r?\n")


def check_host(host: bytes) -> None:
    """Raise BadRequestError for a Host that can be none."""
    if _HOST.fullmatch(host) is None:
        raise BadRequestError("The Host header is no name or address.", code="invalid_host")


def check_transfer_coding(value: bytes) -> None:
    """Raise NotImplementedHereError for a body that is anything else than cut into chunks."""
    if value.lower() != b"chunked":
        raise NotImplementedHereError(
            "The only Transfer-Encoding that is supported here is 'chunked': send the body as it is.",
            param="transfer-encoding",
            code="unsupported_transfer_encoding",
        )


def without_upgrade(method: bytes, target: bytes, http_version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The same head without its ``Upgrade`` lines. ``headers`` have lower-case names, and come from a parser, so there
    is no line end in them.
    """
    lines = [b"%b: %b\r\n" % line for line in headers if line[0] != b"upgrade"]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, http_version.encode(), b"".join(lines))


def unknown_method(head: bytes) -> NotImplementedHereError | None:
    """The error for a head of HTTP/1 with a method that the parser does not know; None: it is not even that."""
    found = _REQUEST_LINE.match(head)
    if found is None:
        return None
    return NotImplementedHereError(
        f"The method '{found[1].decode()}' is not supported here.", code="unsupported_method"
    )
