"""The process with the router's NIXL agent: ``python -m baton_serve.router.vllm.leases.agent.main FD PARENT_PID``.

FD is the inherited end of a stream socket for the messages of ``messages.py``. The process ends when the router closes
the socket, after it has sent what it was told to, and when the router dies. A bug ends it as well; the router starts
another one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from baton_serve.core.process.frames import encode, read
from baton_serve.core.process.parent_death import end_with
from baton_serve.router.vllm.leases.agent.messages import TO_AGENT, AgentReady, ToAgent

if TYPE_CHECKING:
    from baton_serve.router.vllm.leases.agent.nixl_port import Agent  # see ``_make_agent``

#: After a call that sends something, the agent is helped along for so many seconds. NIXL tells neither when it needs
#: help nor when it has finished.
PROGRESS_S = 1.0
#: The pauses meanwhile, seconds: the first, each doubled, and the longest.
FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.05
#: Seconds of help for what was sent last before the end.
LAST_PROGRESS_S = 0.02


def main(arguments: Sequence[str]) -> None:
    """Serve the router that has started this process."""
    descriptor, parent_pid = map(int, arguments)
    end_with(parent_pid)
    sys.excepthook = _end_with_bug
    with socket.socket(fileno=descriptor) as sock:
        asyncio.run(serve(sock))


async def serve(sock: socket.socket) -> None:
    """Execute commands in order until the router closes the socket. While NIXL is called, nothing else runs here."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    agent, error = _make_agent()
    writer.write(encode(AgentReady(error)))
    if agent is None:  # and the router, which was told so, sends nothing
        await reader.read()
        return

    async def next_command() -> ToAgent | None:
        return await read(reader, TO_AGENT)

    pause_s, until_s = FIRST_PAUSE_S, 0.0
    coming = asyncio.create_task(next_command())
    while True:
        await asyncio.wait({coming}, timeout=pause_s if time.monotonic() < until_s else None)
        if coming.done():
            if (command := coming.result()) is None:
                break
            coming = asyncio.create_task(next_command())
            if (answer := agent.execute(command)) is not None:
                writer.write(encode(answer))
            pause_s, until_s = FIRST_PAUSE_S, time.monotonic() + PROGRESS_S
        else:
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        agent.help_along()
    until_s = time.monotonic() + LAST_PROGRESS_S
    while time.monotonic() < until_s:
        agent.help_along()
        await asyncio.sleep(FIRST_PAUSE_S)


def _make_agent() -> tuple[Agent | None, str]:
    """The agent, or why there is none."""
    # NIXL imports torch, if it is there, to choose its build by torch's CUDA. That took 2 s and 190 MB, and any build
    # can send notifications. None has NIXL find no torch.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    try:
        from baton_serve.router.vllm.leases.agent.nixl_port import Agent
    except Exception as error:  # noqa: BLE001 (the next process would meet it as well)
        return None, f"nixl cannot be imported: {error}"
    try:
        return Agent(f"baton-router-{secrets.token_hex(8)}"), ""
    except Exception as error:  # noqa: BLE001 (as above)
        return None, f"NIXL cannot start: {error}"


def _end_with_bug(*why: Any) -> None:
    sys.__excepthook__(*why)
    exit_now(1)


def exit_now(status: int) -> NoReturn:
    """Exit without the clean-up of interpreter and libraries: the system frees memory, sockets and shared memory."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
    exit_now(0)
