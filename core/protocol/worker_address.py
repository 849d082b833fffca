"""The address of a worker that is not in the registry: Baton's own, another engine's, or a vLLM server's.

``host:port`` and ``http(s)://host:port`` are workers that are asked as Baton's are. ``vllm+http(s)://host:port`` is a
vLLM server; what it does not tell may follow as a query: ``?side_channel=PORT`` or ``HOST:PORT`` is where its NIXL side
channel listens, ``&handshake=PORT`` where on that host it answers handshakes over HTTP, which is asked instead, and
``&max_num_seqs=N`` how many sequences it runs at once, ``&name=NAME`` what people call it. Error messages never repeat
an address.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from baton_serve.core.protocol.addresses import MAX_URL_CHARS, is_host, worker_url
from baton_serve.core.protocol.id_syntax import KEY_ID

_VLLM = "vllm+"
#: vLLM's own defaults: ``VLLM_NIXL_SIDE_CHANNEL_PORT`` in vllm/envs.py, and ``max_num_seqs`` of ``vllm serve`` for most
#: machines (``EngineArgs.get_batch_defaults`` in vllm/engine/arg_utils.py).
SIDE_CHANNEL_PORT = 5600
MAX_NUM_SEQS = 256
_MOST_SEQS = 1 << 20


@dataclass(frozen=True)
class WorkerAddress:
    """One worker's address, checked. ``text`` is the whole of it, ``worker_id`` the same without the query."""

    text: str
    worker_id: str
    #: Base URL of its HTTP port, without a trailing slash.
    url: str
    is_vllm: bool = False
    #: Of vLLM's NIXL side channel. The host is empty where the address does not name one: then it is the URL's.
    side_channel_host: str = ""
    side_channel_port: int = SIDE_CHANNEL_PORT
    #: On the side channel's host; 0: it is not asked over HTTP.
    handshake_port: int = 0
    #: Sequences that it runs at once; 0: it announces that itself, or it is not known.
    max_num_seqs: int = 0
    #: A name that commands take in place of its id; empty: none.
    name: str = ""

    @property
    def host(self) -> str:
        """The host of the HTTP port."""
        return urlsplit(self.url).hostname or ""

    @property
    def speaks_tls(self) -> bool:
        """Whether the HTTP port speaks TLS."""
        return self.url.startswith("https://")

    @property
    def side_channel(self) -> tuple[str, int]:
        """Host and port of the side channel."""
        return self.side_channel_host or self.host, self.side_channel_port

    def at(self, ip: str) -> WorkerAddress:
        """The same address with an IP address in place of the host's name; the side channel's too where it has that."""
        port = urlsplit(self.url).port
        place = f"[{ip}]" if ":" in ip else ip
        url = urlsplit(self.url)._replace(netloc=place if port is None else f"{place}:{port}").geturl()
        worker_id = f"{_VLLM}{url}"
        _, mark, query = self.text.partition("?")
        return replace(self, text=f"{worker_id}{mark}{query}", worker_id=worker_id, url=url)


def worker_address(text: str) -> WorkerAddress:
    """The parts of a worker's address. Raises ValueError."""
    if not text.startswith(_VLLM):
        url = worker_url(text)
        return WorkerAddress(url, url, url)
    place, _, query = text.removeprefix(_VLLM).partition("?")
    if "://" not in place:
        raise ValueError("the address of a vLLM server is vllm+http(s)://host:port")
    url = worker_url(place)
    options = {"max_num_seqs": MAX_NUM_SEQS} | _options(query)
    worker_id = f"{_VLLM}{url}"
    whole = f"{worker_id}?{query}" if query else worker_id
    if len(whole) > MAX_URL_CHARS:
        raise ValueError(f"a worker address has at most {MAX_URL_CHARS} characters")
    return WorkerAddress(whole, worker_id, url, is_vllm=True, **options)


def check_once(addresses: Iterable[WorkerAddress]) -> None:
    """Raise ValueError if two of them are one worker with two queries."""
    texts: dict[str, str] = {}
    for address in addresses:
        if texts.setdefault(address.worker_id, address.text) != address.text:
            raise ValueError("the same worker is there twice, with different options after the ?")


def _options(query: str) -> dict[str, Any]:
    """The fields that the query gives."""
    if not (query.isascii() and query.isprintable()) or " " in query or "#" in query:
        raise ValueError("an address is printable ASCII without spaces")
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "side_channel":
            host, port = _side_channel(value)
            fields = {"side_channel_host": host, "side_channel_port": port}
        elif name == "handshake":
            fields = {"handshake_port": _number(value, 65535, "handshake")}
        elif name == "max_num_seqs":
            fields = {"max_num_seqs": _number(value, _MOST_SEQS, "max_num_seqs")}
        elif name == "name":
            fields = {"name": _name(value)}
        else:
            shown = name if name.isidentifier() else "a name"
            raise ValueError(
                f"{shown} is no option of a vLLM address: there are side_channel, handshake, max_num_seqs and name"
            )
        if found.keys() & fields.keys():
            raise ValueError("an option of a vLLM address is there twice")
        found |= fields
    return found


def _name(text: str) -> str:
    if KEY_ID.fullmatch(text) is None:
        raise ValueError("the name of a worker has letters, digits and . _ - only")
    return text


def _side_channel(value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if host and not is_host(host):
        raise ValueError("side_channel is a port or host:port")
    return host, _number(port, 65535, "the port of side_channel")


def _number(text: str, most: int, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 0 < int(text) <= most:
        raise ValueError(f"{what} is not a number from 1 to {most}")
    return int(text)
