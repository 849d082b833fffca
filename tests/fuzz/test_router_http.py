"""What clients, operators and other routers may send to a router: any body, any header, any path, on both ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import orjson
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from tests.kits.fuzz.profile import (
    JSON,
    LONG_TEXT,
    NASTY_TEXTS,
    as_json,
    check_error,
    check_excerpts,
    cut,
    fuzz,
    mutated,
    tried,
    with_long_text,
)
from tests.kits.fuzz.served import Served
from tests.kits.router.cluster import chat, eventually

PATHS = ("/v1/chat/completions", "/v1/completions")
#: A body in each dialect, with something of everything.
RESPONSE: dict[str, Any] = {
    "model": "m",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "5"},
    ],
    "instructions": "i",
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    "tool_choice": {"type": "function", "name": "f"},
    "reasoning": {"effort": None},
    "metadata": {"a": "b"},
    "include": ["message.output_text.logprobs"],
    "user": "u",
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "5", "is_error": True}]},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "adaptive"},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["x"],
}
DIALECTS = {"/v1/responses": RESPONSE, "/v1/messages": MESSAGES}
ADMIN = (
    ("GET", "/admin/requests"),
    ("POST", "/admin/requests/x/abort"),
    ("POST", "/admin/abort"),
    ("GET", "/admin/workers"),
    ("POST", "/admin/workers"),
    ("POST", "/admin/workers/x/drain"),
    ("DELETE", "/admin/workers/x"),
    ("GET", "/admin/leases"),
    ("GET", "/admin/routers"),
)
INTERNAL = (
    ("GET", "/health"),
    ("GET", "/internal/requests"),
    ("GET", "/internal/keepers"),
    ("GET", "/internal/live"),
    ("GET", "/internal/metrics-state"),
    ("GET", "/internal/workers/shared"),
    ("POST", "/internal/abort"),
    ("POST", "/internal/requests/x/abort"),
    ("POST", "/internal/workers/add"),
    ("POST", "/internal/workers/forget"),
    ("POST", "/internal/workers/leave-out"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    async with Served() as made:
        yield made


#: Requests for workers, one after another on a connection, with bodies of both kinds.
ALMOST = b"".join(
    b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n%b" % (path.encode(), body)
    for path, body in (
        (
            PATHS[1],
            b'transfer-encoding: chunked\r\n\r\n1d;a="b"\r\n{"model":"m","prompt":"hello"\r\n1\r\n}\r\n0\r\n\r\n',
        ),
        (PATHS[0], b'content-length: 63\r\n\r\n{"model":"m","messages":[{"role":"user","content":"hi"}],"n":1}'),
        (
            PATHS[1],
            b'expect: 100-continue\r\nconnection: close\r\ncontent-length: 29\r\n\r\n{"model":"m","prompt":"bye" }',
        ),
    )
)


#: The same in pieces, to be put together in any order, and some that fit nowhere.
PIECES = [part + end for end in (b"\r\n\r\n", b"\r\n") for part in ALMOST.split(end)] + [b"zz\r\n", b"{", b"\r\n"]


async def test_almost_requests_are_made_of_requests(served: Served) -> None:
    said = await served.say([ALMOST], leaves=False)
    assert said.count(b"HTTP/1.1 200 ") == 3


@fuzz(150)
@given(
    data=mutated(ALMOST) | st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join),
    cuts=st.lists(st.integers(0, len(ALMOST)), max_size=4),
)
async def test_of_almost_requests_nothing_is_left(served: Served, data: bytes, cuts: list[int]) -> None:
    said = await served.say(cut(data, cuts))
    assert said == b"" or said.startswith(b"HTTP/1.1 ")
    assert b"internal_error" not in said
    assert served.cluster.front.calls.num_arriving == 0, "at once, not when it times out"
    await eventually(served.cluster.is_idle)
    tried["almost requests for workers"] += 1


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_in_a_dialect_is_served(served: Served, path: str, stream: bool) -> None:
    """Else the tests below would only try how it is refused."""
    answer = await served.send("POST", path, orjson.dumps({**DIALECTS[path], "stream": stream}))
    assert answer.status_code == 200, answer.text


#: One for each path, and fields that it has not.
CLIENTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(PATHS, chat(stop=["x"], logit_bias={"5": 1}, seed=1)),
    **DIALECTS,
}
MORE = ["prompt", "stream_options", "logprobs", "n", "echo", "prompt_logprobs", "text", "top_logprobs", "output_config"]


@fuzz(100)
@given(
    sent=st.sampled_from(list(CLIENTS.items())).flatmap(
        lambda item: st.tuples(st.just(item[0]), mutated(orjson.dumps({**item[1], "stream": True})))
    )
)
async def test_a_body_with_changed_bytes(served: Served, sent: tuple[str, bytes]) -> None:
    await served.tried("a client's body", await served.send("POST", *sent))


@fuzz(120)
@given(data=st.data(), path=st.sampled_from(list(CLIENTS)))
async def test_a_body_with_any_values(served: Served, data: st.DataObject, path: str) -> None:
    names = st.sampled_from([*CLIENTS[path], "stream", *MORE]) | st.text(max_size=5)
    values = data.draw(st.dictionaries(names, JSON, max_size=4))
    await served.tried("a client's body", await served.send("POST", path, as_json({**CLIENTS[path], **values})))


@pytest.mark.parametrize("path", [*PATHS, *DIALECTS, "/v1/messages/count_tokens", "/admin/abort", "/admin/workers"])
@pytest.mark.parametrize("body", NASTY_TEXTS, ids=range(len(NASTY_TEXTS)))
async def test_a_nasty_body(served: Served, path: str, body: bytes) -> None:
    answer = await served.send("POST", path, body)
    is_not_asked = path.endswith("/count_tokens") and b'"max_tokens"' in body  # it has no such parameter
    assert answer.status_code >= 400 or is_not_asked
    await served.tried("a client's body", answer)


@fuzz(20)
@given(params=JSON, inner=JSON)
async def test_kv_transfer_params_of_clients_reach_no_worker(served: Served, params: Any, inner: Any) -> None:
    for worker in served.workers:
        worker.bodies.clear()
    body = {**chat(), "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "evil", "resume": inner}}
    for one in (body, {**body, "kv_transfer_params": params}):
        answer = await served.send("POST", PATHS[0], as_json(one))
        await served.tried("a client's kv_transfer_params", answer)
        assert answer.status_code == 200
    for worker in served.workers:
        for seen in worker.bodies:
            assert b"evil" not in orjson.dumps(seen)
            assert set(seen["kv_transfer_params"]) & {"do_remote_decode", "lease_id"}


HEADER_NAMES = ("x-request-timeout", "x-baton-priority", "x-request-id", "authorization", "traceparent", "tracestate")
HEADER_VALUES = (
    st.binary(max_size=40).map(lambda value: bytes(byte for byte in value if byte >= 32 and byte != 127).strip())
    | st.floats().map(lambda value: repr(value).encode())
    | st.sampled_from(
        [
            b"",
            b"1e-300",
            b"1e999",
            b"-1",
            b"nan",
            b"0x10",
            b"1_0",
            b"\xb2",
            b"9" * 5000,
            b"Bearer",
            b"Bearer \xff",
            b"00-",
            b"00-" + b"f" * 32 + b"-" + b"0" * 16 + b"-01",
            b"high",
            b"normal",
        ]
    )
)


@fuzz(40)
@given(headers=st.lists(st.tuples(st.sampled_from(HEADER_NAMES), HEADER_VALUES), max_size=4))
async def test_headers(served: Served, headers: list[tuple[str, bytes]]) -> None:
    answer = await served.send("POST", PATHS[0], orjson.dumps(chat()), headers)
    await served.tried("headers", answer)
    keys = [name.lower() for name, _ in headers if name.lower() in ("authorization", "x-api-key")]
    if len(keys) > len(set(keys)):  # it is refused before it is a request
        assert answer.json()["error"]["code"] == "invalid_http"
    else:
        assert len(answer.headers["x-request-id"]) == 32


@fuzz(40)
@given(
    place=st.sampled_from(ADMIN),
    tail=st.sampled_from(["", "/", "/%00", "/%ff", "/..%2f", "/" + "x" * 1000, "?a=%ff", "/\u20ac"]),
    body=JSON.map(as_json) | st.sampled_from([b"", b'{"url":"http://\\ud800:1","role":"both"}']),
)
async def test_the_admin_api(served: Served, place: tuple[str, str], tail: str, body: bytes) -> None:
    method, path = place
    await served.tried("the admin API", await served.send(method, path + tail, b"" if method == "GET" else body))


async def test_what_other_routers_ask_is_served(served: Served) -> None:
    """Else the tests below would only try how unknown paths are refused."""
    for method, path in INTERNAL:
        if method == "GET":
            assert (await served.send(method, path, internal=True)).status_code == 200, path
    for told in (b'{"id":"w","left_out":true}', b'{"id":"w","left_out":false}'):
        answer = await served.send("POST", "/internal/workers/leave-out", told, internal=True)
        assert answer.status_code == 200


TOLD = st.sampled_from(
    [
        b"",
        b"[" * 100_000,
        b'{"\\ud800":1}',
        b"\xff",
        b'{"url":"http://x:0","role":"both"}',
        b'{"url":"http://x:1","role":"decode"}',
        b'{"id":"\\ud800"}',
        b'{"id":"\\ud800","left_out":true}',
        b'{"id":"%b","left_out":true}' % (b"x" * 100_000),
        b'{"id":"%b"}' % (b"x" * 100_000),
        b'{"state":"\\ud800"}',
        b'{"older_than_s":NaN}',
        b'{"older_than_s":1e999}',
        b'{"worker":"%b","all":0}' % (b"x" * 100_000),
    ]
)


async def ask_internal(served: Served, method: str, path: str, body: bytes = b"") -> None:
    answer = await served.send(method, path, body, internal=True)
    tried["a router's internal port"] += 1
    check_error(answer)
    pool = served.cluster.pool
    for worker in pool:
        if worker.given is not None:  # or the next requests would go there
            pool.remove_static(worker)


@fuzz(60)
@given(
    place=st.sampled_from(INTERNAL),
    tail=st.sampled_from(["", "", "/", "/%00", "/%ff", "/x", "?num_steps=x", "?num_steps=-1"]),
    body=JSON.map(as_json) | TOLD,
)
async def test_the_internal_port(served: Served, place: tuple[str, str], tail: str, body: bytes) -> None:
    method, path = place
    await ask_internal(served, method, path + tail, b"" if method == "GET" else body)


@pytest.mark.parametrize("path", [path for method, path in INTERNAL if method == "POST"])
@pytest.mark.parametrize("body", NASTY_TEXTS, ids=range(len(NASTY_TEXTS)))
async def test_a_nasty_text_of_another_router(served: Served, path: str, body: bytes) -> None:
    await ask_internal(served, "POST", path, body)


WORKERS = st.sampled_from(
    ["http://w", "w:1", "http://[::1", "file:///x", "http://w:1/\r\n", "http://\u20ac", "a b", ""]
)


@fuzz(20)
@given(url=WORKERS | st.text(max_size=30), role=st.sampled_from(["prefill", "decode", "both", "x", None]))
async def test_addresses_of_workers(served: Served, url: str, role: str | None) -> None:
    """Refused, or a worker that nobody can reach; none of them takes the router down."""
    answer = await served.send("POST", "/admin/workers", as_json({"url": url, "role": role}))
    await served.tried("the admin API", answer)
    if answer.status_code == 201:
        await served.send("DELETE", f"/admin/workers/{answer.json()['id']}")


CHAT = chat(
    stream=True,
    stream_options={"include_usage": True},
    stop=["x"],
    logit_bias={"5": 1},
    n=1,
    tools=[],
    user="u",
    seed=1,
)
COMPLETION = {"model": "m", "prompt": [1, 2], "best_of": 1, "suffix": "", "logprobs": 1}
FILTER = {"all": False, "state": "held", "worker": "w", "model": "m", "user": "u", "older_than_s": 1e9}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", COMPLETION),
    *DIALECTS.items(),
    ("/admin/abort", FILTER),
    ("/admin/workers", {"url": "w:1", "role": "decode"}),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=[path for path, _ in BODIES])
async def test_an_error_repeats_little_of_a_body(served: Served, path: str, body: dict[str, Any]) -> None:
    for other in with_long_text(body):
        answer = await served.send("POST", path, orjson.dumps(other))
        check_excerpts(answer)
        await served.tried("long texts", answer)


async def test_an_error_repeats_little_of_another_routers_body(served: Served) -> None:
    for path, body in (
        ("/internal/abort", FILTER),
        ("/internal/workers/add", {"url": "w:1", "role": "decode"}),
        ("/internal/workers/forget", {"id": "w"}),
        ("/internal/workers/leave-out", {"id": "w", "left_out": True}),
    ):
        for other in with_long_text(body):
            check_excerpts(await served.send("POST", path, orjson.dumps(other), internal=True))
            await ask_internal(served, "POST", path, orjson.dumps(other))


@pytest.mark.parametrize("internal", [False, True])
async def test_an_error_repeats_little_of_a_path(served: Served, internal: bool) -> None:
    places = (*ADMIN, *INTERNAL, ("GET", "/v1/models/x"), ("POST", PATHS[0]), ("PUT", "/nothing"))
    for method, path in places:
        for tail in ("", "/", "?num_steps=", "?beginning="):
            for asked in (path.replace("/x", f"/{quote(LONG_TEXT)}"), path + tail + quote(LONG_TEXT)):
                answer = await served.send(method, asked, b"", internal=internal)
                check_excerpts(answer)
                await served.tried("long texts", answer)


@pytest.mark.parametrize("name", [*HEADER_NAMES, "sec-fetch-site", "origin", "content-type", "accept", "x-any"])
@pytest.mark.parametrize("path", [*PATHS, "/admin/abort"])
async def test_an_error_repeats_little_of_a_header(served: Served, name: str, path: str) -> None:
    answer = await served.send("POST", path, b"{}", [(name, "Z" * 5000)])
    check_excerpts(answer)
    await served.tried("long texts", answer)
