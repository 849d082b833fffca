"""Real worker processes: model, rank, NIXL, Redis and all, with a small random model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton_serve.core.process.settings import SHARED
from baton_serve.core.protocol.status import Failed, Ready, Status, decode
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.registry.redis_registry import RedisRegistry
from baton_serve.workers.settings import WorkerSettings
from tests.kits import tiny_models
from tests.kits.patience import PATIENCE_S
from tests.kits.registry import snapshot

RUN = "import sys, json; from baton_serve.workers.main import run; "
RUN += "from baton_serve.workers.settings import WorkerSettings; "
RUN += "sys.exit(run(WorkerSettings(**json.loads(sys.argv[1]))))"
SMALL: dict[str, Any] = {"num_blocks": 128, "torch_threads": 1, "max_num_seqs": 8, "drain_timeout_s": 20}
ROOT = Path(__file__).parents[2]


@dataclass
class Process:
    """A worker process and the lines it says on its status descriptor."""

    process: asyncio.subprocess.Process
    lines: asyncio.StreamReader

    async def said(self, kind: type[Ready] | type[Failed]) -> Any:
        """The first status of this kind."""
        status: Status | None = None
        while not isinstance(status, kind):
            line = await self.lines.readline()
            assert line, f"it ended without {kind.__name__}"
            status = decode(line)
        return status

    async def end(self) -> int:
        return await self.process.wait()


@contextlib.asynccontextmanager
async def worker(**settings: Any) -> AsyncIterator[Process]:
    """Start one; whatever happens it is gone afterwards."""
    read_fd, write_fd = os.pipe()
    argument = json.dumps({**SMALL, **settings, "status_fd": write_fd})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUN,
        argument,
        pass_fds=[write_fd],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(write_fd)
    lines = asyncio.StreamReader()
    pipe = os.fdopen(read_fd, "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    try:
        yield Process(process, lines)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
        transport.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield str(tiny_models.build(tmp_path_factory.mktemp("model") / "tiny", "llama"))


def rank_of(pid: int) -> int:
    """The worker's only child."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=PATIENCE_S)


def ask(**more: Any) -> dict[str, Any]:
    prompt = "the runner who comes in holds the baton until the other one has it, and not a step longer"
    return {"model": "tiny", "prompt": prompt, "max_tokens": 24, "seed": 3, "ignore_eos": True, **more}


def texts(body: str) -> str:
    chunks = [json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: {")]
    return "".join(chunk["choices"][0].get("text", "") for chunk in chunks if chunk["choices"])


@pytest.mark.slow
async def test_one_worker_alone_and_two_together_say_the_same(model: str, redis_url: str) -> None:
    shared = {"redis_url": redis_url, "model": model, "internal_token": "between-us"}
    registry = RedisRegistry(redis_url, WORKERS)
    async with worker(role="prefill", **shared) as p, worker(role="decode", **shared) as d:
        ready_p, ready_d = await p.said(Ready), await d.said(Ready)
        assert {status.record.url for status in await snapshot(registry)} == {ready_p.url, ready_d.url}
        async with client(ready_p.url) as prefill, client(ready_d.url) as decode:
            for http in (prefill, decode):
                assert (await http.post("/v1/completions", json=ask())).status_code == 401
                http.headers["x-baton-internal-token"] = "between-us"
            await check_legs(prefill, decode)
            await check_no_blocks_are_left(ready_p, ready_d)
            await check_answers(prefill)
        for one in (p, d):
            one.process.send_signal(signal.SIGTERM)
        assert [await p.end(), await d.end()] == [0, 0]
        assert await snapshot(registry) == []
    await registry.close()


async def check_legs(prefill: httpx.AsyncClient, decode: httpx.AsyncClient) -> None:
    """P's and D's legs give the tokens of one worker, streamed and not."""
    alone = (await prefill.post("/v1/completions", json=ask())).json()["choices"]
    hand_off = ask(max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    for stream in (False, True):
        first = (await prefill.post("/v1/completions", json=hand_off)).json()
        body = ask(stream=stream, kv_transfer_params=first["kv_transfer_params"])
        answer = await decode.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        if stream:
            assert first["choices"][0]["text"] + texts(answer.text) == alone[0]["text"]
        else:
            assert answer.json()["choices"] == alone
    page = (await decode.get("/metrics")).text
    assert 'baton_worker_reads_total{outcome="done"} 2.0' in page
    assert "baton_worker_local_prefills_total 0.0" in page


async def check_no_blocks_are_left(*workers: Ready) -> None:
    for one in workers:
        async with client(one.internal_url) as internal:
            while True:  # D's word reaches P a moment after the answer reached us
                headers = {"authorization": "Bearer between-us"}
                state = (await internal.get("/internal/state", headers=headers)).json()
                assert state["ledger"] == "ok"
                if state["blocks"]["pinned"] + state["blocks"]["leased"] == 0:
                    break


async def check_answers(http: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "who holds the baton?"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 9, "temperature": 0, "ignore_eos": True}
    whole = (await http.post("/v1/chat/completions", json=body)).json()
    streamed = (await http.post("/v1/chat/completions", json={**body, "stream": True})).text
    chunks = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 9
    assert (await http.get("/v1/models")).json()["data"][0]["id"] == "tiny"


@pytest.mark.slow
async def test_a_killed_rank_ends_requests_and_process_with_one_line(model: str) -> None:
    async with worker(role="both", redis_url="", model=model, num_blocks=512) as one:
        ready = await one.said(Ready)
        async with client(ready.url) as http:
            async with http.stream("POST", "/v1/completions", json=ask(max_tokens=4000, stream=True)) as response:
                lines = response.aiter_lines()
                assert (await anext(lines)).startswith("data: {")
                rank = rank_of(one.process.pid)
                os.kill(rank, signal.SIGKILL)
                *_, last = [line async for line in lines if line]
            assert json.loads(last[6:])["error"]["code"] == "engine_dead"
        failed = await one.said(Failed)
        assert "killed by signal 9" in failed.error
        _, stderr = await one.process.communicate()
        assert one.process.returncode == 1
        assert stderr.decode().splitlines()[-1] == f"worker: {failed.error}"


@pytest.mark.slow
async def test_sigterm_waits_for_what_runs_and_takes_nothing_new(model: str) -> None:
    async with worker(redis_url="", model=model) as one:
        ready = await one.said(Ready)
        body = ask(max_tokens=300, stream=True)
        async with client(ready.url) as http, http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            one.process.send_signal(signal.SIGTERM)
            while (health := await http.get("/health")).status_code == 200:
                pass
            assert health.json()["error"]["code"] == "draining"
            refused = await http.post("/v1/completions", json=ask())
            assert refused.json()["error"]["code"] == "draining"
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert await one.end() == 0


@pytest.mark.slow
async def test_sigint_does_not_wait(model: str) -> None:
    async with worker(redis_url="", model=model, num_blocks=512, drain_timeout_s=600) as one:
        ready = await one.said(Ready)
        async with client(ready.url) as http:
            async with http.stream("POST", "/v1/completions", json=ask(max_tokens=4000, stream=True)) as response:
                lines = response.aiter_lines()
                await anext(lines)
                one.process.send_signal(signal.SIGINT)
                *_, last = [line async for line in lines if line]
            assert "error" in json.loads(last[6:])
        assert await one.end() == 0


@pytest.mark.slow
async def test_a_signal_while_loading_leaves_nothing_running(model: str) -> None:
    async with worker(redis_url="", model=model) as one:
        assert await one.lines.readline()  # the rank says that it loads
        rank = rank_of(one.process.pid)
        one.process.send_signal(signal.SIGTERM)
        assert await one.end() == 0
        assert not is_there(rank)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [{"model": "/nowhere/at/all"}, {"max_model_len": 10**9}, {"kv_cache_bytes": 10, "num_blocks": None}]
)
async def test_what_cannot_start_says_so_in_one_line(model: str, wrong: dict[str, Any]) -> None:
    async with worker(**{"redis_url": "", "model": model, **wrong}) as one:
        failed = await one.said(Failed)
        _, stderr = await one.process.communicate()
        assert one.process.returncode == 1
        assert stderr.decode().splitlines()[-1] == f"worker: {failed.error}"
        assert "Traceback" not in stderr.decode()


async def test_a_redis_option_that_is_none_is_one_line() -> None:
    async with worker(redis_url="redis://:sesame@127.0.0.1:1/0?sesame=1", model="unused") as one:
        failed = await one.said(Failed)
        _, stderr = await one.process.communicate()
        assert one.process.returncode == 1
        assert stderr.decode().splitlines() == [f"worker: {failed.error}"]
        assert failed.error == "redis_url is not understood by the Redis client"


async def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with worker(redis_url="", model="unused", port=port) as one:
            failed = await one.said(Failed)
            _, stderr = await one.process.communicate()
            assert one.process.returncode == 1
            assert stderr.decode() == f"worker: {failed.error}\n"
            assert str(port) in failed.error


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": "0.0.0.0"},
        {"internal_host": "192.0.2.1"},
        {"num_blocks": 1},
        {"max_num_seqs": 100, "max_num_batched_tokens": 50},
        {"registry_ttl_ms": 300},
        {"unknown": 1},
        {"device": "tpu"},
    ],
)
def test_settings_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WorkerSettings(**{"model": "m", **wrong})


def test_settings_with_a_token_may_listen_anywhere() -> None:
    settings = WorkerSettings(model="org/name", host="0.0.0.0", internal_token="x", advertise_host="worker-1")
    assert settings.advertised(settings.host) == "worker-1"
    assert settings.model_name == "name" and settings.bound_internal_host == "0.0.0.0"
    assert "x" not in repr(settings.internal_token)
    assert WorkerSettings(model="m", host="::1").advertised("::1") == "::1"
    assert {"redis_url", "internal_token"} <= SHARED
