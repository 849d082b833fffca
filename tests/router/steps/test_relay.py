"""D's stream on its way to the client: whole events only, and at most one error."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.net.client.errors import ConnectionLost
from baton_serve.router.pool import WorkerPool
from baton_serve.router.request import reply
from baton_serve.router.request.sent_tokens import SentTokens
from baton_serve.router.steps import relay
from baton_serve.router.steps.failures import StreamBroken
from baton_serve.router.steps.judge import Judge
from baton_serve.router.telemetry.metrics.metrics import Metrics
from baton_serve.router.upstream import events as stream_events
from baton_serve.router.upstream.worker_errors import error_event
from tests.kits.router.cluster import Cluster, chat, events, eventually, make_settings, spoken
from tests.kits.router.stub_workers import Raw, word

DONE = b"data: [DONE]\n\n"
ERRORS = [
    b'data: {"error":{"message":"broke","type":"server_error","code":500}}\n\n',
    b'data: {"object": "error", "message": "broke", "code": 400}\n\n',
]


def token(text: str) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"  # as vLLM writes it


# --- the pump, with every way to cut a stream into chunks


class Chunks:
    """An answer that comes in these chunks and then ends, or is lost."""

    def __init__(self, chunks: list[bytes], *, lost: bool) -> None:
        self.chunks = chunks
        self.lost = lost
        #: Whether the client is slow now.
        self.is_blocked = False

    async def pass_on(self, take: Callable[[bytes], bool]) -> bool:
        while self.chunks:
            assert not self.is_blocked
            if not take(self.chunks.pop(0)):
                return False
        if self.lost:
            raise ConnectionLost("the worker closed the connection")
        return True


async def pump(
    chunks: list[bytes], *, lost: bool = False, seen: SentTokens | None = None, **settings: int
) -> tuple[bool | None, list[bytes], int]:
    """What became of it (None: it broke off), what the client was sent, and the number of tokens.

    ``seen``: notes the tokens that the chunks name.
    """
    sent: list[bytes] = []
    answer = Chunks(chunks[1:], lost=lost)

    def put(data: bytes, *, content: bool = True) -> bool:
        assert content
        assert data.count(b"\n\n") <= relay.EVENTS_IN_A_CHUNK
        sent.append(data)
        answer.is_blocked = len(sent) % 2 == 0
        return not answer.is_blocked

    async def drain() -> None:
        answer.is_blocked = False

    passing = relay.Relay(Judge(WorkerPool(1), Metrics()), Metrics().itl, make_settings(**settings).max_event_bytes)
    request: Any = SimpleNamespace(
        held=SimpleNamespace(answer=answer),
        decode_worker=None,
        clock=time.monotonic,
        asked=SimpleNamespace(ends_with_done=True),
        reply=SimpleNamespace(put=put, drain=drain, started=True, first_content_s=None),
        progress=SimpleNamespace(num_tokens=0, num_chunks=0),
        sent_tokens=seen or SentTokens(),
    )
    try:
        return await passing.pump(request, chunks[0]) is None, sent, request.progress.num_tokens
    except (StreamBroken, stream_events.EventTooLarge):
        return None, sent, request.progress.num_tokens


@pytest.mark.interpreted
@given(
    st.lists(st.sampled_from([*map(token, ["a", "bc", "error", '"error"']), *ERRORS]), max_size=8),
    st.booleans(),
    st.integers(0, 400),
    st.sets(st.integers(1, 400), max_size=12),
    st.booleans(),
)
def test_a_stream_is_passed_on_in_whole_events_however_it_is_cut(
    whole: list[bytes], done: bool, missing: int, cuts: set[int], lost: bool
) -> None:
    stream = b"".join(whole) + (DONE if done else b"")
    stream = stream[: max(0, len(stream) - missing)]
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    chunks = [stream[begin:end] for begin, end in pairwise(places)]
    ended, sent, num_tokens = asyncio.run(pump(chunks, lost=lost))
    arrived = stream[: stream.rfind(b"\n\n") + 2] if b"\n\n" in stream else b""
    assert b"".join(sent) == arrived
    assert all(data.endswith(b"\n\n") for data in sent), "an error could follow each of them"
    assert num_tokens == arrived.count(b"\n\n")
    if any(error in arrived for error in ERRORS):
        assert ended is False
    elif arrived.endswith(DONE):  # though the end of the body may be lost
        assert ended is True
    else:
        assert ended is None


async def test_many_events_at_once_are_several_chunks_also_the_first(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode", ours=False)
    many = [token(word(number)) for number in range(10)]
    d.script.append(Raw([b"".join([*many, DONE])]))
    async with cluster.client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
        text = "".join([part async for part in response.aiter_text()])
    assert spoken(text) == "".join(map(word, range(10)))
    assert cluster.metrics.num_chunks == 3


@pytest.mark.interpreted
async def test_whole_events_are_not_copied() -> None:
    data = token("a")
    _, sent, _ = await pump([data, DONE])
    assert sent[0] is data


@pytest.mark.interpreted
@given(
    st.lists(st.tuples(st.integers(0, 2**17), st.sampled_from(["a", "bc", "error", '"', ""])), max_size=8),
    st.sets(st.integers(1, 10), max_size=10),
    st.sets(st.integers(1, 400), max_size=3),
)
def test_the_tokens_of_a_stream_are_noted_however_it_is_cut(
    told: list[tuple[int, str]], ends: set[int], cuts: set[int]
) -> None:
    events = [b":%d\n%b" % (number, token(text)) for number, text in told]
    stream = b"".join(events)
    places = {
        0,
        len(stream),
        *(len(b"".join(events[:end])) for end in ends),
        *(cut for cut in cuts if cut < len(stream)),
    }
    chunks = [stream[begin:end] for begin, end in pairwise(sorted(places))] or [b""]
    seen = SentTokens()
    seen.leg(b":5\n" + token("x"), named=True, opens=False)
    _, sent, num_tokens = asyncio.run(pump(chunks, seen=seen))
    assert b"".join(sent) == b"".join(token(text) for _, text in told)
    assert (num_tokens, seen.ids()) == (len(told), [number for number, _ in told])


@pytest.mark.interpreted
async def test_text_that_looks_like_the_last_event_may_be_the_end_of_another_one() -> None:
    part = token("b")[:-10]
    _, sent, _ = await pump([token("a"), part, token("c"), DONE])
    assert sent == [token("a"), part + token("c"), DONE]


@pytest.mark.interpreted
async def test_an_event_like_the_others_may_be_too_large() -> None:
    event = b'data: {"id":"' + b"i" * 970 + b'","choices":[{"text":"%b"}]}\n\n'
    assert len(event % b"a") <= 1024 < len(event % (b"b" * 20))
    ended, sent, _ = await pump([event % b"a", event % b"bc", event % (b"b" * 20), DONE], max_event_bytes=1024)
    assert (ended, sent) == (None, [event % b"a", event % b"bc"])


@pytest.mark.interpreted
async def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    for first in (b"", token("a")):
        ended, sent, _ = await pump([first + b"x" * 1000, b"x" * 1000, DONE], max_event_bytes=1024)
        assert (ended, b"".join(sent)) == (None, first)


def test_a_large_event_that_drips_in_is_looked_at_once() -> None:
    cutter = stream_events.EventCutter()
    drip = token("x" * stream_events.MAX_EVENT_BYTES)[-stream_events.MAX_EVENT_BYTES :]
    begun_s = time.process_time()
    assert b"".join([cutter.feed(drip[i : i + 1]) for i in range(len(drip))]) == drip
    assert time.process_time() - begun_s < 5, "with a copy for each byte it is a minute"


@pytest.mark.parametrize("event", ERRORS)
def test_an_error_event_is_found_among_other_events(event: bytes) -> None:
    found = error_event(token("a") + event + DONE)
    assert found is not None
    assert (found.message, found.status) == ("broke", 400 if b"400" in event else 500)


@pytest.mark.parametrize(
    "event",
    [
        token("error"),
        token('{"error":1}'),
        b'data: {"choices":[],"error":null}\n\n',
        b'data: {"error"\n\n',
        b': {"error":{"message":"a comment"}}\n\n',
        b'data: ["error"]\n\n',
        b'data: {"choices":[{"text":"data: {\\"error\\""}]}\n\n',
    ],
)
def test_events_that_only_look_like_errors_are_no_errors(event: bytes) -> None:
    assert error_event(event) is None


# --- through the whole router


async def test_an_error_after_half_an_event_is_an_event(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    raw = Raw([token(word(1)), None, token(word(2))[:-9]], then="die")
    d.script.append(raw)
    text = await cluster.streamed(chat(stream=True), raw, after=word(1))
    assert spoken(text) == word(0) + word(1)
    assert events(text)[-1]["error"]["code"] == "upstream_error"


async def test_an_error_event_in_pieces_reaches_the_client_once(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode", ours=False)
    raw = Raw([token(word(0)), token(word(1)), ERRORS[0][:25], None, ERRORS[0][25:], DONE])
    d.script.append(raw)
    text = await cluster.streamed(chat(stream=True), raw, after=word(1))
    assert [event["error"]["message"] for event in events(text) if "error" in event] == ["broke"]
    assert cluster.metrics.outcomes == {("failed", ""): 1}
    cluster.check_idle()


@pytest.mark.parametrize("then", ["stop", "hang"])
@pytest.mark.parametrize("event", ERRORS)
async def test_an_error_instead_of_content_is_no_200(cluster: Cluster, event: bytes, then: str) -> None:
    _, d = await cluster.fleet("prefill", "decode", ours=False)
    d.script.extend([Raw([b'data: {"choices":[]}\n\n', event], then=then) for _ in range(3)])
    response = await cluster.post(chat(stream=True))
    assert response.status_code == (400 if b"400" in event else 500)
    assert response.json()["error"]["message"] == "broke"
    cluster.check_idle()


def stalled(cluster: Cluster) -> socket.socket:
    """Asks, and never reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", int(cluster.url.rpartition(":")[2])))
    body = json.dumps(chat(stream=True)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    sock.sendall(head + body)
    return sock


@pytest.mark.settings(unread_timeout_s=0.1)
async def test_a_client_that_does_not_read_keeps_no_d_until_the_deadline(cluster: Cluster) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.script.append(Raw([token("x" * 60_000)] * 1000, then="hang"))
    sock = stalled(cluster)
    await eventually(lambda: cluster.metrics.outcomes["aborted", "client_gone"] == 1)
    await eventually(lambda: d.num_disconnects == 1)
    cluster.check_idle()
    sock.close()


@pytest.mark.settings(request_timeout_s=0.3)
async def test_a_stalled_reader_does_not_outlive_its_deadline(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reply, "LAST_WRITE_S", 0.05)
    _, d = await cluster.fleet("prefill", "decode")
    d.script.append(Raw([token("x" * 60_000)] * 1000))
    sock = stalled(cluster)
    await eventually(lambda: cluster.metrics.outcomes["aborted", "deadline_exceeded"] == 1)
    await eventually(lambda: not cluster.server.served.tasks, "nobody waits for it any more")
    await eventually(lambda: not cluster.server.served.connections, "its connection is dropped")
    assert [record for record in caplog.records if record.name == "baton.net"] == []
    cluster.check_idle()
    sock.close()
