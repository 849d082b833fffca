"""A request that is put off to the end of the loop's turn, and what may happen before that."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.net.client.connection import Connection
from baton_serve.core.net.client.errors import ConnectionLost
from baton_serve.core.net.deadlines import Timeouts
from tests.kits.burst import in_a_burst
from tests.kits.pipe import Pipe

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Late:
    """A connection in a burst."""

    def __init__(self) -> None:
        late_writes, self.turns = in_a_burst()
        self.pipe = Pipe()
        self.connection = Connection([], set(), Timeouts(asyncio.get_running_loop()), late_writes)
        self.connection.connection_made(self.pipe)


@pytest.fixture
async def late(socketless: None) -> Late:
    return Late()


async def test_a_late_request_is_written_once_and_as_a_whole(late: Late) -> None:
    answer = late.connection.send(b"head", (b"a", memoryview(b"b")), 2)
    assert late.pipe.sent == []
    late.turns.next()
    assert late.pipe.sent == [b"headab"]
    late.connection.data_received(ANSWER)
    assert (answer.complete, await answer.read(10, None)) == (True, b"ok")
    late.turns.next()
    assert late.pipe.sent == [b"headab"]


async def test_nothing_is_written_for_a_caller_that_has_gone(late: Late) -> None:
    answer = late.connection.send(b"head")
    answer.close()
    late.turns.next()
    assert (late.pipe.sent, late.pipe.aborted) == ([], True)


async def test_data_that_came_before_a_request_was_written_is_no_answer_to_it(late: Late) -> None:
    answer = late.connection.send(b"head")
    late.connection.data_received(ANSWER)
    with pytest.raises(ConnectionLost):
        await answer.headers()
    assert not answer.started, "so it may be sent again on another connection"
    late.turns.next()
    assert (late.pipe.sent, late.pipe.aborted) == ([], True)


async def test_a_late_request_fails_on_a_connection_that_was_lost_before(late: Late) -> None:
    answer = late.connection.send(b"head")
    late.connection.connection_lost(None)
    with pytest.raises(ConnectionLost):
        await answer.headers()
    late.turns.next()
    assert late.pipe.sent == []
