"""Checks addresses of settings and messages before anything connects. Error messages never repeat an address."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qs, quote, urlsplit, urlunsplit

#: How a Redis URL begins: of one server, and of Sentinels that know the primary.
_REDIS_SCHEMES = frozenset({"redis", "rediss", "valkey", "valkeys"})
SENTINEL_SCHEMES = ("redis+sentinel://", "rediss+sentinel://")
_SENTINEL_PORT = 26379
#: A label as in RFC 1123, or with underscores, which names of containers have.
_LABEL = re.compile(r"[0-9A-Za-z_]([0-9A-Za-z_-]{0,61}[0-9A-Za-z_])?")
_MAX_NAME_CHARS = 253
#: The ports that browsers omit from an origin.
HTTP_PORTS = {"http": 80, "https": 443}
#: An IPv6 address in a URL, and perhaps a port.
_IN_BRACKETS = re.compile(r"\[([^\[\]]*)\](:.*)?")
#: Characters of a worker's URL, which is also the worker's id if it was added by URL.
MAX_URL_CHARS = 512


def check_redis_url(url: str) -> str:
    """The URL itself. Raises ValueError for one that no Redis client could use."""
    parts = _split(url)
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise ValueError("a unix:// URL needs the path of a socket")
    elif url.startswith(SENTINEL_SCHEMES):
        redis_place(url)
    elif parts.scheme not in _REDIS_SCHEMES:
        raise ValueError(
            "a Redis URL begins with redis://, rediss://, valkey://, valkeys://, redis+sentinel://, rediss+sentinel:// "
            "or unix://"
        )
    else:
        _check_place(parts)
        if not re.fullmatch(r"(/\d*)?", parts.path):
            raise ValueError("the path of a Redis URL is the number of a database, such as /0")
    return url


class RedisPlace(NamedTuple):
    """A Redis that Sentinels know. ``url``: as of a server at the first Sentinel, for all but the server's place."""

    sentinels: list[tuple[str, int]]
    service: str
    url: str
    is_tls: bool


def redis_place(url: str) -> RedisPlace:
    """What a URL of Sentinels says: ``redis+sentinel://[user:password@]host[:port],.../service[/database]``.

    User and password are for Redis; the Sentinels' are the options ``sentinel_username`` and
    ``sentinel_password``. Raises ValueError.
    """
    parts = _split(url)
    user, at, hosts = parts.netloc.rpartition("@")
    servers = [urlsplit(f"redis://{host}") for host in hosts.split(",")]
    for server in servers:
        _check_place(server)
    service, _, database = parts.path.removeprefix("/").partition("/")
    if not re.fullmatch(r"[0-9A-Za-z._-]+", service) or not re.fullmatch(r"\d*", database):
        raise ValueError("the path of a Sentinel URL is the primary's name and perhaps a database, such as /mymaster/0")
    scheme = parts.scheme.partition("+")[0]
    plain = urlunsplit((scheme, f"{user}{at}{servers[0].netloc}", f"/{database or 0}", parts.query, ""))
    places = [(server.hostname or "", server.port or _SENTINEL_PORT) for server in servers]
    return RedisPlace(places, service, plain, scheme == "rediss")


def has_password(redis_url: str) -> bool:
    """Whether a Redis client would take a password from the URL."""
    parts = _split(redis_url)
    return bool(parts.password) or "password" in parse_qs(parts.query)


def with_password(redis_url: str, password: str) -> str:
    """The URL of Redis, which has no password, with ``password`` in it."""
    parts = _split(redis_url)
    user, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.removesuffix(':')}:{quote(password, safe='')}@{place}"))


def worker_url(address: str) -> str:
    """The base URL for ``host:port`` or for a URL, without a trailing slash. Raises ValueError."""
    url = address if "://" in address else f"http://{address}"
    parts = _split(url)
    if parts.scheme not in {"http", "https"} or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("worker addresses are host:port, http(s)://host:port or vllm+http(s)://host:port")
    _check_place(parts)
    base_url = url.rstrip("/")
    if len(base_url) > MAX_URL_CHARS:
        raise ValueError(f"a worker address has at most {MAX_URL_CHARS} characters")
    return base_url


def own_host(name: str) -> str:
    """The ``name`` itself without brackets: a name or address for ``Host``, or ``*``. Raises ValueError for anything
    else.
    """
    plain = name.removeprefix("[").removesuffix("]").lower()
    if plain != "*" and not is_host(plain):
        raise ValueError("a host is a name or an address without scheme and port, or * for every name")
    return plain


def page_origin(url: str) -> str:
    """Scheme, host and port of pages as browsers write them in ``Origin``, or ``*``. Raises ValueError for anything
    else.
    """
    if url == "*":
        return url
    parts = _split(url.removesuffix("/"))
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc or not (parts.scheme and parts.netloc):
        raise ValueError("an origin is scheme://host or scheme://host:port, or * for every one")
    _check_place(parts)
    standard = HTTP_PORTS.get(parts.scheme) == parts.port
    return f"{parts.scheme}://{parts.netloc.removesuffix(f':{parts.port}') if standard else parts.netloc}".lower()


def _split(url: str) -> SplitResult:
    if not (url.isascii() and url.isprintable()) or " " in url:  # urlsplit() would drop some of these silently
        raise ValueError("an address is printable ASCII without spaces")
    try:
        parts = urlsplit(url)
        place = parts.netloc.rpartition("@")[2]
        if "[" in place or "]" in place:  # some versions of Python take junk beside them
            brackets = _IN_BRACKETS.fullmatch(place)
            ipaddress.IPv6Address(brackets[1] if brackets else "")
    except ValueError:  # its message repeats the address
        raise ValueError("not a URL") from None
    return parts


def _check_place(parts: SplitResult) -> None:
    try:
        port = parts.port
    except ValueError:  # its message repeats the port, which may be half of a password
        raise ValueError("the port is not a number from 1 to 65535") from None
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError("the port is not a number from 1 to 65535")
    if not is_host(parts.hostname or ""):
        raise ValueError("the host is neither a name nor an IP address")


def is_host(host: str) -> bool:
    """Whether ``host`` is an IP address or could be the name of a machine."""
    name = host.removesuffix(".")
    return is_ip(host) or (len(name) <= _MAX_NAME_CHARS and all(map(_LABEL.fullmatch, name.split("."))))


def is_ip(host: str) -> bool:
    """Whether ``host`` is an IP address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return host.isprintable()  # after a % an IPv6 address may have anything
