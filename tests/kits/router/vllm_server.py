"""A scripted vLLM server over real HTTP: chats and completions as a plain engine, and vLLM's other endpoints."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from baton_serve.router.pool import Worker
from baton_serve.router.pool.model_card import ModelFacts
from tests.kits.router.cluster import Cluster
from tests.kits.router.stub_workers import Hang, Raw, Refuse, Reset, StubWorker

#: The events of the two streams that it knows, with a token of text each.
STREAMS = {
    "/v1/responses": [
        ("response.created", {"response": {"id": "r", "error": None}}),
        ("response.in_progress", {"response": {"id": "r", "error": None}}),
        ("response.output_text.delta", {"delta": "a"}),
        ("response.output_text.delta", {"delta": "b"}),
        ("response.completed", {"response": {"id": "r", "error": None}}),
    ],
    "/v1/messages": [
        ("message_start", {"message": {"content": []}}),
        ("content_block_start", {"content_block": {"text": ""}}),
        ("content_block_delta", {"delta": {"text": "a"}}),
        ("message_stop", {}),
    ],
}


def event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


class VllmServer(StubWorker):
    """Answers the other endpoints with their path and the body that came, or as the script says."""

    def __init__(self, role: str, name: str) -> None:
        super().__init__(role, ours=False, name=name)
        self.paths: list[str] = []

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/{path:.*}", self._other)

    async def _other(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.paths.append(request.path)
        act = self.script.popleft() if self.script else None
        try:
            return await self._answer(request, body, act)
        except ConnectionResetError:
            self.num_disconnects += 1
            raise

    async def _answer(self, request: web.Request, body: dict[str, Any], act: Any) -> web.StreamResponse:
        if isinstance(act, Hang):
            await act.release.wait()
        if isinstance(act, Refuse):
            return web.json_response(act.body, status=act.status)
        if isinstance(act, Reset):
            assert request.transport is not None
            request.transport.abort()
        if isinstance(act, web.Response):
            return act
        if not (body.get("stream") and request.path in STREAMS):
            return web.json_response({"path": request.path, "body": body})
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if isinstance(act, Raw):
            return await self._send_raw(request, response, act)
        for name, data in STREAMS[request.path]:
            await response.write(event(name, data))
        return response


async def add_vllm(
    cluster: Cluster, role: str, *, model: str = "m", adapters: tuple[str, ...] = ()
) -> tuple[VllmServer, Worker]:
    """A new vLLM server, at an address that the router has been given. ``adapters``: names of LoRAs of the model."""
    server = VllmServer(role, f"v{len(cluster.workers)}")
    server.model = model
    await server.start()
    cluster.workers.append(server)
    address = f"vllm+{server.url}"
    prefill, decode = ([address] if role in (one, "both") else [] for one in ("prefill", "decode"))
    worker = cluster.pool.add_static(prefill, decode)[0]
    facts = {model: ModelFacts(root=model), **{name: ModelFacts(root=name, parent=model) for name in adapters}}
    cluster.pool.learn_models(worker, facts)
    return server, worker


async def add_vllm_pair(cluster: Cluster) -> tuple[VllmServer, VllmServer]:
    return (await add_vllm(cluster, "prefill"))[0], (await add_vllm(cluster, "decode"))[0]


def prefilled(number: int, **more: Any) -> Refuse:
    """What a P answers that keeps blocks. ``more``: parameters of the hand-off that are others than usual."""
    params = {
        "do_remote_prefill": True,
        "remote_block_ids": [[1]],
        "remote_engine_id": "e",
        "remote_request_id": f"chatcmpl-{number}",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": 3,
        **more,
    }
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}
    return Refuse(200, {"id": "x", "model": "m", "choices": [choice], "kv_transfer_params": params})
