"""The process with the router's NIXL agent: ``python -m baton_serve.router.vllm.leases.agent.main FD PARENT_PID``.

FD is the inherited end of a stream socket for the messages of ``messages.py``. The process ends when the router closes
the socket, after it has sent what it was told to, and when the router dies.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from baton_serve.core.process.frames import encode, read
from baton_serve.core.process.parent_death import end_with
from baton_serve.router.vllm.leases.agent.agent_thread import Add, AgentThread
from baton_serve.router.vllm.leases.agent.messages import (
    CONNECT_S,
    TO_AGENT,
    Connect,
    Connected,
    Forget,
    Notify,
    Queried,
    Query,
    Started,
    UseKey,
)
from baton_serve.router.vllm.leases.side_channel_facts import SideChannelError, SideChannelReason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from baton_serve.router.vllm.leases.agent.messages import FromAgent, ToAgent
    from baton_serve.router.vllm.leases.agent.side_channel import SideChannels

#: Seconds for the last notifications once the router has closed the socket.
FINISH_S = 1.0


def main(arguments: Sequence[str]) -> int:
    """Serve the router that has started this process; returns the exit status."""
    descriptor, parent_pid = map(int, arguments)
    end_with(parent_pid)
    threading.excepthook = _end_with_thread
    with socket.socket(fileno=descriptor) as sock:
        asyncio.run(serve(sock))
    return 0


async def serve(sock: socket.socket) -> None:
    """Take commands until the router closes the socket."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    loop = asyncio.get_running_loop()

    def emit(event: FromAgent) -> None:
        writer.write(encode(event))

    def emit_from_thread(event: FromAgent) -> None:
        loop.call_soon_threadsafe(emit, event)

    thread = AgentThread(emit_from_thread)
    thread.start()
    side_channels, error = _side_channels()
    emit(Started(error))
    commands = Commands(emit, thread, side_channels)
    while (command := await read(reader, TO_AGENT)) is not None:
        commands.take(command)
    await asyncio.to_thread(thread.finish, FINISH_S)


class Commands:
    """Executes the router's commands. What waits for a side channel is a task of its own, so it delays no other.

    Whatever happens in it, it answers: the router takes a process that does not for one that hangs.
    """

    def __init__(
        self, emit: Callable[[FromAgent], None], thread: AgentThread, side_channels: SideChannels | None
    ) -> None:
        self._emit = emit
        self._thread = thread
        #: None: none can be asked, and the router, which was told so, sends nothing that needs one.
        self._side_channels = side_channels
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, command: ToAgent) -> None:
        """Begin a command; its answer is emitted later."""
        match command:
            case Notify() | Forget():
                self._thread.submit(command)
            case UseKey() if self._side_channels is not None:
                self._side_channels.use_key(command.key)
            case Connect() if self._side_channels is not None:
                self._begin(self._connect(command, self._side_channels))
            case Query() if self._side_channels is not None:
                self._begin(self._query(command, self._side_channels))

    async def _connect(self, command: Connect, side_channels: SideChannels) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                ranks = await side_channels.ask_all(command.where)
        except TimeoutError:
            self._emit(Connected(command.where.engine_id, 0, f"its ranks do not answer within {CONNECT_S:g} s"))
        except SideChannelError as error:
            self._emit(Connected(command.where.engine_id, 0, str(error)))
        except Exception as error:
            self._emit(Connected(command.where.engine_id, 0, repr(error)))
            raise
        else:
            self._thread.submit(Add(command.where.engine_id, ranks))

    async def _query(self, command: Query, side_channels: SideChannels) -> None:
        try:
            facts = await side_channels.ask_first(command.host, command.port, command.handshake_port)
        except SideChannelError as error:
            self._emit(Queried(command.number, None, error.reason, str(error)))
        except Exception as error:
            self._emit(Queried(command.number, None, SideChannelReason.CANNOT_ASK, repr(error)))
            raise
        else:
            self._emit(Queried(command.number, facts, None, ""))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _side_channels() -> tuple[SideChannels | None, str]:
    """What asks side channels, or why nothing can."""
    try:
        from baton_serve.router.vllm.leases.agent.side_channel import SideChannels
    except ImportError as error:
        return None, f"pyzmq cannot be imported: {error}"
    return SideChannels(), ""


def _end_with_thread(why: threading.ExceptHookArgs) -> None:
    """A process without the thread that owns the agent does nothing; the router starts another one."""
    threading.__excepthook__(why)
    exit_now(1)


def exit_now(status: int) -> NoReturn:
    """Exit without the clean-up of interpreter and libraries: the system frees memory, sockets and shared memory."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    exit_now(main(sys.argv[1:]))
