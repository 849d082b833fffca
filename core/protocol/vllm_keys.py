"""The keys of vLLM servers that were started with ``--api-key``: one for all of them, and others for some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from baton_serve.core.protocol.addresses import worker_url

if TYPE_CHECKING:
    from pydantic import SecretStr


class VllmKeys:
    """Raises ValueError for what is not ``KEY`` or ``URL=KEY``, without repeating it."""

    def __init__(self, given: Iterable[SecretStr]) -> None:
        #: By base URL; under the empty one the key of all other servers.
        self._keys: dict[str, str] = {}
        for one in given:
            url, key = _parts(one.get_secret_value())
            if not key or not (key.isascii() and key.isprintable()) or " " in key:
                raise ValueError(
                    "a key of a vLLM server is KEY, or http(s)://host:port=KEY for one server, in printable ASCII "
                    "without spaces"
                )
            if self._keys.setdefault(url, key) != key:
                raise ValueError("the same vLLM server, or all of them, are given two keys")

    def __repr__(self) -> str:
        return f"<VllmKeys {len(self._keys)} keys>"

    @property
    def of_all(self) -> str:
        """The key of the servers that have no other; empty: there is none."""
        return self._keys.get("", "")

    def of(self, url: str, given: str = "") -> str:
        """The key of the vLLM server at a base URL; empty: it has none.

        ``given``: the URL with the host name that people gave, which may stand for several servers: they have one key.
        """
        return self._keys.get(url) or self._keys.get(given) or self.of_all


def _parts(text: str) -> tuple[str, str]:
    """Base URL and key. Raises ValueError for an address that is none."""
    if not text.startswith(("http://", "https://")):
        return "", text
    url, _, key = text.partition("=")
    return worker_url(url), key
