"""Looks up host names, each in a daemon thread of its own.

``getaddrinfo`` blocks until the name server answers, and cannot be interrupted. An event loop calls it in a small pool
of threads that the whole process shares, and for which the process waits at its exit. So a few names that hang would
delay all other lookups, and the exit.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from baton_serve.core.protocol.addresses import is_ip
from baton_serve.workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason

#: A function that blocks and returns the addresses of a host name; raises OSError or UnicodeError.
Lookup = Callable[[str], Sequence[str]]

#: At most this many addresses of a host are tried.
MAX_ADDRESSES = 3
#: The addresses of ``localhost`` on every machine (RFC 6761).
_LOCALHOST = ("127.0.0.1", "::1")


def look_up(host: str) -> list[str]:
    """The addresses that this machine's resolver finds, best first. May block. Raises OSError or UnicodeError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # No link-local addresses: they contain the name of an interface, which an event loop would look up again.
    return [address for address in dict.fromkeys(str(place[0]) for *_, place in found) if "%" not in address]


class Resolver:
    """Looks up names for one event loop. At most ``max_lookups`` threads run, one for each name."""

    def __init__(self, lookup: Lookup, max_lookups: int) -> None:
        self._lookup = lookup
        self._max_lookups = max_lookups
        self._running: dict[str, asyncio.Future[Sequence[str]]] = {}

    async def addresses(self, host: str) -> tuple[str, ...]:
        """At most ``MAX_ADDRESSES`` addresses, IPv4 and IPv6 in turn. No thread is needed for addresses and localhost.

        Raises OSError for a name without an address, HandshakeError if too many names are being looked up. Has no
        timeout. If this is cancelled, the lookup continues for the next call with this name.
        """
        if is_ip(host):
            return (host,)
        if host.lower() == "localhost":
            return _LOCALHOST
        return _in_turn(await asyncio.shield(self._running.get(host) or self._begin(host)))

    def _begin(self, host: str) -> asyncio.Future[Sequence[str]]:
        if len(self._running) >= self._max_lookups:
            what = f"{host} cannot be looked up: {len(self._running)} other names are being looked up"
            raise HandshakeError(HandshakeReason.TOO_MANY, what)
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[str]] = loop.create_future()
        thread = threading.Thread(target=self._run, args=(loop, host, found), name=f"look up {host}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(f"{host} cannot be looked up: {error}") from error
        self._running[host] = found
        return found

    def _run(self, loop: asyncio.AbstractEventLoop, host: str, found: asyncio.Future[Sequence[str]]) -> None:
        """Run in the thread. Always reports an answer or an error, because coroutines wait for it."""
        answer: Sequence[str] | OSError = OSError(f"the lookup of {host} broke")
        try:
            answer = self._lookup(host) or OSError(f"{host} has no address")
        except OSError as error:
            answer = error
        except UnicodeError:
            answer = OSError(f"{host} cannot be a host name")
        finally:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._settle, host, found, answer)

    def _settle(self, host: str, found: asyncio.Future[Sequence[str]], answer: Sequence[str] | OSError) -> None:
        del self._running[host]
        if isinstance(answer, OSError):
            found.set_exception(answer)
            found.exception()  # marks the exception as retrieved: maybe no coroutine waits any more
        else:
            found.set_result(answer)


def _in_turn(addresses: Sequence[str]) -> tuple[str, ...]:
    """IPv4 and IPv6 addresses alternately: if a network drops packets of one family, the other one often works."""
    is_first = [(":" in address) == (":" in addresses[0]) for address in addresses]
    first = itertools.compress(addresses, is_first)
    others = itertools.compress(addresses, (not one for one in is_first))
    mixed = [address for pair in itertools.zip_longest(first, others) for address in pair if address is not None]
    return tuple(mixed[:MAX_ADDRESSES])
