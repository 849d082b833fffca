"""vLLM servers that ask for a key get theirs with every request, and nobody else gets it."""

from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from baton_serve.core.protocol.vllm_keys import VllmKeys
from tests.kits.router.cluster import Cluster, chat, eventually, make_settings
from tests.kits.router.stub_workers import Refuse
from tests.kits.router.vllm_server import add_vllm
from tests.router.vllm.servers.conftest import Watched

KEY = "sesame-7f3a"
pytestmark = pytest.mark.settings(vllm_api_keys=(SecretStr(KEY),))


async def test_every_leg_and_every_other_path_has_the_key(cluster: Cluster) -> None:
    d, _ = await add_vllm(cluster, "decode")
    other = await cluster.add("both", model="other")
    for body in (chat(), chat(stream=True)):
        assert (await cluster.post(body)).status_code == 200
    assert (await cluster.client.post("/tokenize", json={"model": "m", "prompt": "a"})).status_code == 200
    assert (await cluster.post(chat(model="other"))).status_code == 200
    p, _ = await add_vllm(cluster, "prefill")
    p.script.append(Refuse(400, {"error": {"message": "too long"}}))
    assert (await cluster.post(chat())).status_code == 400
    assert p.headers and d.headers
    assert {headers.get("authorization") for headers in (*p.headers, *d.headers)} == {f"Bearer {KEY}"}
    assert all("authorization" not in headers for headers in other.headers)


async def test_a_server_that_is_gone_leaves_its_key_to_nobody(cluster: Cluster) -> None:
    server, worker = await add_vllm(cluster, "decode")
    upstream, pool = cluster.upstream, cluster.pool
    pool.remove_static(worker)
    answer = await upstream.request("POST", server.url, "/tokenize", (), b"{}", 5)
    answer.close()
    assert "authorization" not in server.headers[-1]


async def test_a_server_is_asked_what_it_is_with_its_key(watched: Watched) -> None:
    server = await watched.server()
    server.key = KEY
    (worker,) = watched.pool.add_static([server.address], [server.address])
    await eventually(lambda: "asks for another API key" in worker.problem)
    assert "BATON_VLLM_API_KEYS_FILE" in worker.problem
    watched.upstream.use_key(server.url, "not it")
    await eventually(lambda: f"Bearer {'not it'}" in server.keys_seen)
    assert "asks for another API key" in worker.problem
    watched.upstream.use_key(server.url, KEY)
    await eventually(lambda: worker.takes_work and worker.models == ("tiny",))
    assert worker.problem == ""


async def test_one_server_may_have_a_key_of_its_own(cluster: Cluster) -> None:
    _, one = await add_vllm(cluster, "decode")
    _, other = await add_vllm(cluster, "decode")
    keys = VllmKeys([SecretStr("for-all"), SecretStr(f"{one.url}/=own=key")])
    assert (keys.of(one.url), keys.of(other.url), keys.of_all) == ("own=key", "for-all", "for-all")
    assert VllmKeys([SecretStr(f"{one.url}=own")]).of(other.url) == ""


@pytest.mark.parametrize(
    "given",
    [
        ("sesame 7",),
        ("sesam\u00e9",),
        ("abc\r\nx: y",),
        (f"http://a:1={KEY}", "http://a:1=b"),
        ("http://a:1",),
        ("http://=a",),
    ],
)
def test_a_malformed_key_is_refused_and_not_repeated(given: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        make_settings(vllm_api_keys=tuple(map(SecretStr, given)))
    assert KEY not in str(refused.value) and "a:1" not in str(refused.value)
    assert KEY not in repr(make_settings(vllm_api_keys=(SecretStr(KEY),)))
