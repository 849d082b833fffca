"""Names of hosts to addresses, in threads that nobody waits for.

``getaddrinfo`` blocks for as long as a name server likes, and nothing can interrupt it. An event loop calls it in a
pool of few threads that all of the process shares and waits for at its exit: some names that hang would hold up every
other one, and the exit. Here each name has a daemon thread of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from workers.rank_protocol.transfer_errors import HandshakeError, HandshakeReason

#: Blocks; raises OSError or UnicodeError.
Lookup = Callable[[str], Sequence[str]]

#: Of one host are tried.
MAX_ADDRESSES = 3
#: What it is everywhere (RFC 6761).
_LOCALHOST = ("127.0.0.1", "::1")


def look_up(host: str) -> list[str]:
    """What this machine's resolver says, best first. May block for long. Raises OSError or UnicodeError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # Not those of one link: event loops know them by name of the interface only, and look that up again.
    return [address for address in dict.fromkeys(str(place[0]) for *_, place in found) if "%" not in address]


class Resolver:
    """All methods are called from one event loop. At most ``max_lookups`` threads run, one for each name."""

    def __init__(self, lookup: Lookup, max_lookups: int) -> None:
        self._lookup = lookup
        self._max_lookups = max_lookups
        self._running: dict[str, asyncio.Future[Sequence[str]]] = {}

    def __repr__(self) -> str:
        return f"<Resolver {len(self._running)} names being looked up>"

    async def addresses(self, host: str) -> tuple[str, ...]:
        """At most ``MAX_ADDRESSES``, the families in turn. Addresses and localhost are known without a thread.

        Raises OSError for a name without an address, HandshakeError when too many names are being looked up. Has no
        timeout; cancelling it leaves the lookup to the next who asks for this name.
        """
        if _is_address(host):
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
        """The thread. Whatever happens, somebody may wait for the answer."""
        answer: Sequence[str] | OSError = OSError(f"the lookup of {host} broke")
        try:
            answer = self._lookup(host) or OSError(f"{host} has no address")
        except OSError as error:
            answer = error
        except UnicodeError:
            answer = OSError(f"{host} cannot be a host name")
        finally:
            with suppress(RuntimeError):  # the loop is gone, and with it who asked
                loop.call_soon_threadsafe(self._settle, host, found, answer)

    def _settle(self, host: str, found: asyncio.Future[Sequence[str]], answer: Sequence[str] | OSError) -> None:
        del self._running[host]
        if isinstance(answer, OSError):
            found.set_exception(answer)
            found.exception()  # nobody may be left to hear of it
        else:
            found.set_result(answer)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _in_turn(addresses: Sequence[str]) -> tuple[str, ...]:
    """A network that swallows one family often carries the other."""
    is_first = [(":" in address) == (":" in addresses[0]) for address in addresses]
    first = itertools.compress(addresses, is_first)
    others = itertools.compress(addresses, (not one for one in is_first))
    mixed = [address for pair in itertools.zip_longest(first, others) for address in pair if address is not None]
    return tuple(mixed[:MAX_ADDRESSES])
