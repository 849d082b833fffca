"""Answers whose heads were known go past the parser, and nobody sees a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from baton_serve.core.net.client.answer import HttpAnswer
from baton_serve.core.net.client.connection import Connection
from baton_serve.core.net.client.errors import CallError
from baton_serve.core.net.deadlines import Timeouts
from baton_serve.core.net.known_head import KnownHead
from tests.kits.pipe import Pipe

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nmetadata: m\r\nretry-after: 3\r\nContent-Length: 2\r\n\r\n"
ANSWER = HEAD + b"ok"
pytestmark = pytest.mark.usefixtures("socketless")
#: Answers that come before a head is known, and one more.
NUM_BEFORE = 3


class Worker:
    """The connection to one, which is the test."""

    def __init__(self) -> None:
        self.idle: list[Connection] = []
        self.pipe = Pipe()
        self.connection = Connection(self.idle, set(), Timeouts(asyncio.get_running_loop()))
        self.connection.connection_made(self.pipe)

    async def answers(self, *pieces: bytes) -> tuple[object, ...]:
        """All that is to be seen of one answer, and of the connection after it."""
        self.idle.clear()
        answer = self.connection.send(b"head")
        reading = asyncio.create_task(_read(answer))
        for piece in pieces:
            await asyncio.sleep(0)
            self.connection.data_received(piece)
        self.connection.eof_received()
        await asyncio.sleep(0)
        if not answer.complete:
            reading.cancel()
        (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        kept = answer.status, answer.content_type, answer.metadata, answer.retry_after
        said = type(outcome) if isinstance(outcome, BaseException) else outcome
        return *kept, answer.started, answer.complete, said, self.idle == [self.connection], self.pipe.aborted


async def _read(answer: HttpAnswer) -> bytes:
    await answer.headers()
    return await answer.read(1 << 20, None)


async def practised(answer: bytes = ANSWER) -> Worker:
    worker = Worker()
    for _ in range(NUM_BEFORE):
        await worker.answers(answer)
    return worker


@pytest.mark.interpreted
async def test_heads_of_answers_are_known_from_the_third_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    real = KnownHead.end_in

    def end_in(known: KnownHead, data: bytes) -> int:
        found.append(real(known, data))
        return found[-1]

    worker = await practised()
    monkeypatch.setattr(KnownHead, "end_in", end_in)
    longer = HEAD.replace(b": 2", b": 10") + b"0123456789"
    seen = await worker.answers(longer)
    assert seen == (200, b"text/plain", b"m", b"3", True, True, b"0123456789", True, False)
    assert found == [len(HEAD) + 1]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([ANSWER], id="whole"),
        pytest.param([HEAD, b"ok"], id="in two"),
        pytest.param([ANSWER[:-1], b"k"], id="in two, later"),
        pytest.param([ANSWER[:20], ANSWER[20:]], id="its head in two"),
        pytest.param([HEAD.replace(b": 2", b": 0")], id="empty"),
        pytest.param([HEAD.replace(b": 2", b": 300000") + b"x" * 300_000], id="large"),
        pytest.param([ANSWER + b"more"], id="more than it said"),
        pytest.param([ANSWER[:-1]], id="less than it said"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n", ANSWER], id="after another head"),
        pytest.param([b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER], id="behind another head"),
        pytest.param([ANSWER.replace(b"200 OK", b"503 Oh")], id="another status"),
        pytest.param([ANSWER.replace(b"metadata: m", b"metadata: n")], id="another header"),
        pytest.param([ANSWER.replace(b"Content", b"connection: close\r\nContent")], id="the last one"),
        pytest.param([ANSWER.replace(b": 2", b": 2x")], id="a length that is none"),
        pytest.param([ANSWER.replace(b": 2", b": -2")], id="a negative length"),
        pytest.param([ANSWER.replace(b": 2", b": 99999999999999999999")], id="a huge length"),
        pytest.param([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"], id="chunks"),
        pytest.param([b"HTTP/1.1 200 OK\r\n\r\nok"], id="up to the end"),
        pytest.param([b"nonsense"], id="nonsense"),
    ],
)
async def test_a_known_answer_is_read_as_on_a_connection_that_knows_none(pieces: list[bytes]) -> None:
    other = HEAD.replace(b"metadata", b"x-other: 1\r\nmetadata") + b"ok"
    workers = [await practised(), await practised(other), Worker()]
    seen = [[await worker.answers(*pieces) for _ in range(NUM_BEFORE)] for worker in workers]
    assert seen[0] == seen[1] == seen[2]


NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\ncontent-length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("before", "pieces"),
    [
        pytest.param(
            NO_CONTENT[:-2] + b"content-length: 0\r\n\r\n",
            [NO_CONTENT[:-2] + b"content-length: 2\r\n\r\nok"],
            id="no content",
        ),
        pytest.param(
            b"HTTP/1.1 304 Not Modified\r\ncontent-length: 0\r\n\r\n",
            [b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\nok"],
            id="not modified",
        ),
        pytest.param(EARLY % len(NO_CONTENT) + NO_CONTENT, [EARLY % 0, ANSWER], id="another head before it"),
        pytest.param(EARLY % len(NO_CONTENT) + NO_CONTENT, [EARLY % len(ANSWER) + ANSWER], id="and in one piece"),
    ],
)
async def test_an_answer_that_has_no_body_is_never_known(before: bytes, pieces: list[bytes]) -> None:
    worker, new = await practised(before), Worker()
    assert await worker.answers(*pieces) == await new.answers(*pieces)


@pytest.mark.interpreted
async def test_heads_that_always_differ_are_seldom_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[bytes] = []
    real = KnownHead.learn

    def learn(known: KnownHead, data: bytes, names: Sequence[bytes]) -> int:
        learned.append(data)
        return real(known, data, names)

    monkeypatch.setattr(KnownHead, "learn", learn)
    worker = Worker()
    for number in range(200):
        await worker.answers(ANSWER.replace(b"metadata: m", b"metadata: %d" % number))
    assert len(learned) == len(range(2, 9)) + len([64, 128, 192])


async def test_data_that_comes_before_a_request_is_no_answer_to_it() -> None:
    worker = await practised()
    worker.connection.data_received(ANSWER)
    assert worker.pipe.aborted
    answer = worker.connection.send(b"head")
    with pytest.raises(CallError):
        await answer.headers()
