"""Answers that are put off to the end of the loop's turn: their order, and whose client leaves before it."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from baton_serve.core.net.late_writes import LateWrites, Writer
from baton_serve.core.net.served.call import HttpCall
from baton_serve.core.protocol.errors import NotFoundError
from baton_serve.router.dialects.reply import reply_to
from baton_serve.workers.server.client import Client
from tests.kits.burst import in_a_burst
from tests.kits.clock import Turns
from tests.kits.patience import PATIENCE_S
from tests.kits.port import HEAD, Caller, Served, serving
from tests.kits.worker.calls import FakeConnection, NoCalls

pytestmark = pytest.mark.parametrize("kind", ["calls"], indirect=True)
BODY = HEAD + b"content-length: 4\r\n\r\n"
HELD = BODY.replace(b"/echo", b"/held")
GET = b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"
NUM_CLIENTS = 24


class Told(NoCalls):
    """Notes who has gone."""

    def __init__(self) -> None:
        self.gone_calls: list[HttpCall] = []

    def gone(self, call: HttpCall) -> None:
        self.gone_calls.append(call)


class Late(FakeConnection):
    """In a burst."""

    def __init__(self) -> None:
        self.told = Told()
        super().__init__(self.told)
        self.late_writes, self.turns = in_a_burst()


@pytest.fixture
async def late() -> Late:
    return Late()


async def test_the_next_request_begins_when_a_late_answer_is_written(late: Late) -> None:
    call = late.ask()
    call.answer(200, b"", b"ab")
    assert (call.answered, call.response_complete, late.sent, late.num_answers) == (True, False, b"", 0)
    late.turns.next()
    assert late.sent.endswith(b"\r\n\r\nab")
    assert (call.response_complete, late.num_answers) == (True, 1)


async def test_a_call_was_answered_if_its_client_leaves_before_a_late_write(late: Late) -> None:
    call = late.ask()
    call.answer(200, b"", b"ab")
    call.gone()
    late.turns.next()
    assert (call.answered, late.told.gone_calls, late.sent, late.num_answers) == (True, [], b"", 0)


async def test_an_answer_whose_client_leaves_before_a_late_write_was_not_sent(late: Late) -> None:
    """P keeps nothing for an answer that did not leave."""
    call = late.ask()
    client = Client(call, "req-1")
    client.send_json(200, b"{}")
    call.gone()
    late.turns.next()
    assert client.gone


async def test_parts_of_a_stream_are_written_together_and_in_order(late: Late) -> None:
    call = late.ask()
    call.start(b"", b"first")
    assert late.sent.endswith(b"5\r\nfirst\r\n"), "the first one is written at once"
    num_sent = len(late.sent)
    assert call.write(b"ab")
    assert call.write(b"c" * 5000)
    call.end()
    assert (call.answered, call.response_complete, len(late.sent)) == (True, False, num_sent)
    late.turns.next()
    assert late.sent[num_sent:] == b"2\r\nab\r\n1388\r\n" + b"c" * 5000 + b"\r\n0\r\n\r\n"
    assert (call.response_complete, late.num_answers) == (True, 1)


async def test_a_stream_is_told_that_its_client_leaves_amid_it(late: Late) -> None:
    call = late.ask()
    call.start(b"", b"first")
    call.write(b"ab")
    num_sent = len(late.sent)
    call.gone()
    call.end()
    late.turns.next()
    assert (late.told.gone_calls, len(late.sent), late.num_answers) == ([call], num_sent, 0)


async def test_the_last_answer_of_a_connection_is_not_put_off(late: Late) -> None:
    call = late.ask(body=None)
    call.answer(400, b"", b"ab")
    assert b"connection: close" in late.sent
    assert (late.num_answers, late.transport.closed) == (1, True)


async def test_an_error_that_is_put_off_is_sent_all_the_same(late: Late) -> None:
    await reply_to(late.ask(), "req-1", None).error(NotFoundError("here is none"))
    late.turns.next()
    assert late.sent.startswith(b"HTTP/1.1 404")
    assert late.sent.endswith(NotFoundError("here is none").to_json("req-1"))


async def test_a_worker_sends_no_error_after_an_answer_that_is_put_off(late: Late) -> None:
    client = Client(late.ask(), "req-1")
    client.send_json(200, b"{}")
    client.send_error(NotFoundError("too late"))
    late.turns.next()
    assert not client.gone
    assert late.sent.endswith(b"\r\n\r\n{}")
    assert b"too late" not in late.sent


@pytest.fixture
async def turns(served: Served) -> Turns:
    """Of a burst: the port puts its answers off until the test makes the next turn."""
    served.port.served.late_writes, loop = in_a_burst()
    return loop


@pytest.fixture
async def caller(served: Served, turns: Turns) -> Caller:
    """A client whose answer is put off."""
    asking = await served.send(BODY + b"abcd")
    await served.app.until_asked(1)
    (call,) = served.app.calls
    assert (call.answered, call.response_complete) == (True, False)
    return asking


@pytest.mark.parametrize(
    ("behind", "code"),
    [
        (HEAD + b"transfer-encoding: chunked\r\n\r\nZZ\r\n", "invalid_http"),
        (b"GET /echo HTTP/1.1\r\n\r\n", "invalid_host"),
    ],
    ids=["body", "head"],
)
async def test_a_request_refused_behind_a_late_answer_takes_nothing_from_it(
    behind: bytes, code: str, caller: Caller, turns: Turns
) -> None:
    await caller.send(behind)
    assert (await caller.answer()).body == b"4"
    refusal = await caller.answer()
    assert (refusal.status, refusal.code) == (400, code)
    turns.next()
    await caller.closed()


async def test_a_client_that_sends_no_more_still_gets_a_late_answer(caller: Caller, turns: Turns) -> None:
    """And those that follow from it."""
    await caller.send((BODY + b"abcd") * 3)
    await asyncio.sleep(0.05)
    caller.writer.write_eof()
    assert [(await caller.answer()).body for _ in range(4)] == [b"4", b"8", b"12", b"16"]
    turns.next()
    await caller.closed()


async def test_a_port_that_stops_sends_late_answers_first(served: Served, caller: Caller, turns: Turns) -> None:
    await served.port.stop(PATIENCE_S)
    assert (await caller.answer()).body == b"4"
    turns.next()
    await caller.closed()


async def test_a_request_behind_a_late_answer_begins_after_it(served: Served, caller: Caller, turns: Turns) -> None:
    await caller.send(BODY + b"efgh" + GET)
    await asyncio.sleep(0.05)
    assert len(served.app.calls) == 1
    for _ in range(3):
        turns.next()
        await asyncio.sleep(0.01)
    assert [(await caller.answer()).body for _ in range(3)] == [b"4", b"8", b"8"]


@pytest.mark.interpreted
def test_in_a_burst_every_client_has_its_answers_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """All their first requests are answered in one turn, in front of two more on each connection."""
    added, written = [], []
    real_add = LateWrites.add

    def add(late_writes: LateWrites, writer: Writer) -> None:
        added.append(writer)
        real_add(late_writes, writer)
        if writer.response_complete:  # type: ignore[attr-defined]
            written.append(writer)

    monkeypatch.setattr(LateWrites, "add", add)
    uvloop.run(_burst())
    assert len(added) == 2 * NUM_CLIENTS
    assert len(written) < NUM_CLIENTS, "most were put off"


async def _burst() -> None:
    async with serving() as served:
        served.port.served.late_writes = LateWrites(asyncio.get_running_loop())
        served.app._answer = lambda call: call.answer(202, b"", b"x")  # type: ignore[method-assign]
        callers = [await served.connect() for _ in range(NUM_CLIENTS)]
        for caller in callers:
            await caller.send(HELD + b"abcd" + GET + BODY + b"abcd")
        await served.app.until_asked(NUM_CLIENTS)
        served.app.go_on.set()
        for caller in callers:
            assert [(await caller.answer()).status for _ in range(3)] == [202, 200, 202]
