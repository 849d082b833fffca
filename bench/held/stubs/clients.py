"""A process of clients: each has a connection of its own, sends one streamed chat, and reads it to its end.

Its argument is ``ClientsSpec`` as JSON. It reads one command a line: ``send NUM PENDING`` sends so many more requests,
at most ``PENDING`` at once without their first token; ``stats`` changes nothing. Each is answered with a line of
``ClientsStats``.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
import uvloop

from bench.held.stubs.lines import commands, say

#: Connections from one source address: each needs a port of it, of which the system has about 28,000. Where more than
#: half of them are taken, Linux looks at all others of the same parity before it finds one: a millisecond each.
PER_ADDRESS = 10_000
#: Source addresses of one process.
NUM_ADDRESSES = 8


class ClientsSpec(msgspec.Struct):
    """To whom they speak, how long their prompts are, and which of several processes this one is."""

    port: int
    prompt_bytes: int
    number: int


class ClientsStats(msgspec.Struct):
    """How many requests were sent, got their first token, their last one, and anything else than an answer."""

    sent: int = 0
    begun: int = 0
    done: int = 0
    failed: int = 0
    failure: str = ""

    def add(self, other: ClientsStats) -> None:
        """Count those of another process too."""
        self.sent += other.sent
        self.begun += other.begun
        self.done += other.done
        self.failed += other.failed
        self.failure = self.failure or other.failure


class Clients:
    """All clients of the process."""

    def __init__(self, spec: ClientsSpec) -> None:
        self.spec = spec
        self.stats = ClientsStats()
        self.freed = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        filler = "the quick brown fox jumps over the lazy dog " * (spec.prompt_bytes // 44 + 1)
        self._filler = filler[: spec.prompt_bytes - 11].encode()

    def request(self, number: int) -> bytes:
        """A request whose prompt begins with its number, so that no two are alike."""
        body = (
            b'{"model":"stub","messages":[{"role":"user","content":"%02d%08d %b"}],"max_tokens":64,"stream":true}'
            % (
                self.spec.number,
                number,
                self._filler,
            )
        )
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)

    async def send(self, num: int, pending: int) -> None:
        """Send so many requests."""
        for _ in range(num):
            while self.stats.sent - self.stats.begun - self.stats.failed >= pending:
                self.freed.clear()
                await self.freed.wait()
            number = self.stats.sent
            self.stats.sent += 1
            task = asyncio.create_task(self._connect(number))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _connect(self, number: int) -> None:
        source = f"127.0.0.{2 + NUM_ADDRESSES * self.spec.number + number // PER_ADDRESS}"
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: Client(self, number), "127.0.0.1", self.spec.port, local_addr=(source, 0)
            )
        except OSError as error:
            self.fail(f"no connection: {error}")

    def fail(self, why: str) -> None:
        """Count a request that did not get an answer."""
        self.stats.failed += 1
        self.stats.failure = self.stats.failure or why
        self.freed.set()


class Client(asyncio.Protocol):
    """One request."""

    __slots__ = ("_clients", "_has_begun", "_is_over", "_number", "_tail", "_transport")

    def __init__(self, clients: Clients, number: int) -> None:
        self._clients = clients
        self._number = number
        self._tail = b""
        self._has_begun = self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.write(self._clients.request(self._number))

    def data_received(self, data: bytes) -> None:
        clients = self._clients
        data = self._tail + data
        if not self._has_begun and b"data: {" in data:
            self._has_begun = True
            clients.stats.begun += 1
            clients.freed.set()
            if not data.startswith(b"HTTP/1.1 200"):
                self._end(f"answered {data[:300]!r}")
        if b"data: [DONE]" in data:
            clients.stats.done += 1
            self._end("")
        self._tail = data[-16:] if self._has_begun else data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_over:
            self._end(f"was cut off after {self._tail[:300]!r}")

    def _end(self, failure: str) -> None:
        if failure and not self._is_over:
            self._clients.fail(failure)
        self._is_over = True
        self._transport.close()


async def main(spec: ClientsSpec) -> None:
    """Do what the lines say, until they end."""
    clients = Clients(spec)
    sending: set[asyncio.Task[None]] = set()
    async for line in commands():
        what, *numbers = line.split()
        if what == "send":
            sending.add(asyncio.create_task(clients.send(*map(int, numbers))))
        say(clients.stats)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=ClientsSpec)))
