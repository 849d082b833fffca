"""vLLM's own handshake, with answers that were fetched in another way.

vLLM asks, checks and uses an answer in one method, over a socket that ``zmq_ctx`` of its module opens. There is no hook
between the question and the rest. To have vLLM do the rest, its method runs as it is, but with our ``zmq_ctx`` among
its global names: ``with_names`` makes a second function of the same code, and changes neither the method nor its
module. A listener on loopback that repeats the answers would do as well, and for a moment would tell them to every
process on the machine.
"""

from __future__ import annotations

import contextlib
import time
from types import FunctionType
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from baton_serve.core.net.vllm_handshakes import Handshake

#: The name in vLLM's module that opens a socket.
OPENS_SOCKET = "zmq_ctx"


def with_names(function: Any, names: Mapping[str, object]) -> Any:
    """The code of ``function`` with these global names in place of its own. Raises KeyError for one that it lacks."""
    unknown = names.keys() - function.__globals__.keys()
    if unknown:
        raise KeyError(f"{function.__qualname__} does not know {', '.join(sorted(unknown))}")
    made = FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class ReplaySocket:
    """Answers the questions of vLLM's handshake as the side channel would: a payload, and the clock of that process."""

    def __init__(self, handshake: Handshake, clock: Callable[[], float]) -> None:
        self._handshake = handshake
        self._clock = clock
        self._asked = b""

    def setsockopt(self, _option: int, _value: int) -> None:
        """The answers are here already, so no option of a socket matters."""

    def send(self, question: bytes) -> None:
        """Take one question."""
        self._asked = question

    def recv_multipart(self) -> list[bytes]:
        """The answer to it: the clock goes on since it was read there. Raises KeyError for another rank."""
        _, pp_rank, tp_rank = msgspec.msgpack.decode(self._asked)
        clock_s = self._clock() + self._handshake.clock_offset_s
        return [self._handshake.payloads[pp_rank, tp_rank], msgspec.msgpack.encode(clock_s)]


def replaying(method: Any, handshake: Handshake, *, clock: Callable[[], float] = time.perf_counter) -> Any:
    """vLLM's ``_nixl_handshake``, to be called with the worker first, that is told ``handshake`` whomever it asks."""

    @contextlib.contextmanager
    def open_replay(_kind: int, _path: str) -> Iterator[ReplaySocket]:
        yield ReplaySocket(handshake, clock)

    return with_names(method, {OPENS_SOCKET: open_replay})
