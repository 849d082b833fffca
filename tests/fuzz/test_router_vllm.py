"""What clients may send to a router whose workers are vLLM servers: any body, at each path that takes one.

The router looks at a few fields only, and vLLM judges the rest: nothing that came is a mistake of the router's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.openai.passed_on import STRIPPED
from baton_serve.router.request.client_request import CHAT_PATH, COMPLETIONS_PATH
from baton_serve.router.request.endpoints import ENDPOINTS
from baton_serve.router.request.validated import PATHS
from tests.kits.fuzz.profile import JSON, NASTY_TEXTS, as_json, check_excerpts, fuzz, mutated, with_long_text
from tests.kits.fuzz.served import Served
from tests.kits.router.cluster import chat

AREA = "a client's body for vLLM"
EACH_PATH = sorted(PATHS)
#: One path for each kind of body.
EACH_KIND = [CHAT_PATH, COMPLETIONS_PATH, *{endpoint.body: path for path, endpoint in ENDPOINTS.items()}.values()]
#: What some path takes, for all of them.
BODY = {
    **chat(stream=True, stream_options={"include_usage": True}, stop=["x"], n=1, seed=1, priority=1, user="u"),
    "prompt": ["hi"],
    "input": "hi",
    "documents": ["d"],
    "tokens": [1, 2],
    "max_output_tokens": 4,
    "previous_response_id": None,
    "vllm_xargs": {"mine": 1},
}
NAMES = [*BODY, "tools", "echo", "logprobs"]
A_PATH = st.sampled_from(EACH_PATH)
EVIL = "evil"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    async with Served(vllm=True) as made:
        yield made


@pytest.mark.parametrize("path", EACH_PATH)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_body_is_served(served: Served, path: str, stream: bool) -> None:
    """Else the tests below would only try how it is refused."""
    answer = await served.send("POST", path, orjson.dumps({**BODY, "stream": stream}))
    assert answer.status_code == 200


@fuzz(80)
@given(body=mutated(orjson.dumps(BODY)), path=A_PATH)
async def test_a_body_with_changed_bytes(served: Served, body: bytes, path: str) -> None:
    await served.tried(AREA, await served.send("POST", path, body))


@fuzz(80)
@given(
    values=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), JSON, max_size=4),
    path=A_PATH,
)
async def test_a_body_with_any_values(served: Served, values: dict[str, Any], path: str) -> None:
    await served.tried(AREA, await served.send("POST", path, as_json({**BODY, **values})))


@pytest.mark.parametrize("path", EACH_PATH)
async def test_a_nasty_body(served: Served, path: str) -> None:
    for body in NASTY_TEXTS:
        await served.tried(AREA, await served.send("POST", path, body))


@fuzz(40)
@given(inner=JSON, path=A_PATH)
async def test_what_is_between_router_and_servers_never_comes_from_a_client(
    served: Served, inner: Any, path: str
) -> None:
    for server in served.workers:
        server.bodies.clear()
    own = {name: {"remote_host": EVIL, "inner": inner} for name in STRIPPED}
    await served.tried(AREA, await served.send("POST", path, as_json({**BODY, **own, "vllm_xargs": own})))
    assert any(server.bodies for server in served.workers)
    assert not any(EVIL in str(body) for server in served.workers for body in server.bodies)


@pytest.mark.parametrize("path", EACH_KIND)
async def test_an_error_repeats_little_of_a_body(served: Served, path: str) -> None:
    for other in with_long_text(BODY):
        answer = await served.send("POST", path, orjson.dumps(other))
        check_excerpts(answer)
        await served.tried(AREA, answer)
