"""Scripted workers over real HTTP: they speak our ``kv_transfer_params`` (or a plain engine's) and fail on request."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from aiohttp import web

from baton_serve.core.leases.store import LeaseStore
from baton_serve.core.protocol import leases_at_p
from baton_serve.core.protocol.choice import HEADER, Choice, choice_in
from baton_serve.core.protocol.handoff import lease_of_reader
from baton_serve.core.protocol.hello import HELLO_PATH

FIRST_TOKEN = 7

#: An event that only keeps a connection alive.
KEEP_ALIVE = b": keep-alive\n\n"

#: What a worker is told that computes the only choice.
ALONE = Choice("x", 0, 5)


def word(i: int, index: int = 0) -> str:
    """A token of a choice."""
    return f" c{index}t{i}" if index else f" t{i}"


class Hang:
    """Read the request, never answer. ``release`` lets it go on as usual; with ``reset``, break the connection."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.reset = False


class Refuse:
    """Answer with this status and body."""

    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body


class Reset:
    """Close the connection: ``before`` any byte, or inside the headers."""

    def __init__(self, sent: bytes = b"") -> None:
        self.sent = sent


class HalfAnswer:
    """P: grant the lease, send headers and half of the answer, and then nothing; ``spoil`` sends another half."""

    def __init__(self, spoil: bytes = b"") -> None:
        self.spoil = spoil


class StreamThen:
    """Stream so many tokens, then ``die`` (reset), ``hang``, ``error`` (an SSE error event) or ``stop`` (clean end).

    More than there are: only the last words are broken off.
    """

    def __init__(self, num_tokens: int, then: str) -> None:
        self.num_tokens = num_tokens
        self.then = then
        #: Set: it breaks off at once.
        self.go = asyncio.Event()


class Raw:
    """D: stream these bytes as they are (None: wait for ``go``), then ``stop`` (clean end), ``die`` or ``hang``.

    ``ping``: send comments from then on, as a server does whose engine hangs.
    """

    def __init__(self, pieces: list[bytes | None], then: str = "stop") -> None:
        self.pieces = pieces
        self.then = then
        self.go = asyncio.Event()


class StubWorker:
    """One worker. ``script`` says what the next requests meet; empty: as usual."""

    def __init__(
        self,
        role: str,
        *,
        ours: bool = True,
        store: LeaseStore | None = None,
        name: str = "w",
        readers: dict[str, tuple[int, set[int]]] | None = None,
    ) -> None:
        """``readers``: of the leases of all workers that have several, how many, and which have read."""
        self.readers = {} if readers is None else readers
        self.role = role
        self.ours = ours
        #: D names the tokens of its streams, if asked to.
        self.names_tokens = ours
        #: Of the error event in a stream that ends in one.
        self.error_code: int | str = 500
        #: Go on after whatever ids, as one whose vocabulary has them; else only after this worker's own.
        self.takes_any_ids = False
        self.store = store
        self.name = name
        self.engine_id = f"engine{name}"
        self.model = "m"
        #: What it says of it besides its name.
        self.card: dict[str, Any] = {}
        self.first_token = FIRST_TOKEN
        self.finish_reason = "length"
        #: P: with the first token the context is full, so no blocks are kept.
        self.is_full = False
        self.first_text = word(0)
        #: The events with which a stream begins that is to begin with its prompt.
        self.echoed = ["the prompt", " and more"]
        #: In the message of an unstreamed chat, besides role and content.
        self.message_fields: dict[str, Any] = {}
        #: The logprobs of whole answers, by the index of the choice.
        self.logprobs_of: dict[int, dict[str, Any]] = {}
        self.script: deque[Any] = deque()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        #: Requests whose client went away.
        self.num_disconnects = 0
        #: For which request each lease was granted.
        self.lease_owners: list[str] = []
        #: P: names this lease in every answer, instead of one each.
        self.only_lease = ""
        #: Request ids that were to be aborted, and the headers of these calls; while ``abort_gate`` is unset they wait.
        self.aborts: list[str] = []
        self.abort_headers: list[dict[str, str]] = []
        self.abort_gate = asyncio.Event()
        self.abort_gate.set()
        self.abort_status = 200
        #: The leases of each call to release some; while ``release_gate`` is unset they wait. ``release_answer``: what
        #: it answers instead, a status and a body.
        self.releases: list[list[str]] = []
        self.release_gate = asyncio.Event()
        self.release_gate.set()
        self.release_answer: tuple[int, str] | None = None
        #: The leases of each question which of them are held. ``holds``: what is answered, so one that is not announced
        #: any more is gone; None: all of them. While ``held_gate`` is unset, questions wait.
        self.asked_held: list[list[str]] = []
        self.holds: Collection[str] | None = ()
        self.held_status = 200
        self.held_gate = asyncio.Event()
        self.held_gate.set()
        #: While it is unset, ``/health`` hangs.
        self.health_gate = asyncio.Event()
        self.health_gate.set()
        self.num_health = 0
        #: What it answers to who asks for a proof that it knows the internal token; None: it does not know that page.
        self.prove: Callable[[str], str] | None = None
        self.num_proofs = 0
        #: What it was told to do (drain, or resume), each with the key that came with it, and how it answers that.
        self.told: list[tuple[str, str | None]] = []
        self.told_status = 200
        #: The code of the error by which it says that its engine is dead, to all and to ``/health``; empty: it is not.
        self.dead = ""
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> StubWorker:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._serve)
        app.router.add_post("/v1/completions", self._serve)
        if self.ours:
            app.router.add_post("/tokenize", self._tokenize)
            app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/internal/abort/{request_id}", self._abort)
        app.router.add_post("/internal/{what:drain|resume}", self._told)
        app.router.add_post(leases_at_p.RELEASE_PATH, self._release)
        app.router.add_post(leases_at_p.HELD_PATH, self._held)
        app.router.add_get("/health", self._health)
        app.router.add_get(HELLO_PATH + "{nonce}", self._hello)
        app.router.add_get("/v1/models", self._models)
        self.add_routes(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"{'http' if tls is None else 'https'}://{host}:{port}"
        return self

    def add_routes(self, app: web.Application) -> None:
        """For kinds of workers that serve more."""

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def hangs(self) -> Hang:
        """The next request does, until what is returned lets it go on."""
        hang = Hang()
        self.script.append(hang)
        return hang

    @property
    def num_leases(self) -> int:
        return len(self.lease_owners)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def _health(self, _: web.Request) -> web.Response:
        self.num_health += 1
        await self.health_gate.wait()
        if self.dead:
            return web.json_response(self._is_dead(), status=503)
        return web.json_response({"status": "ok"})

    async def _hello(self, request: web.Request) -> web.Response:
        self.num_proofs += 1
        assert "authorization" not in request.headers
        return (
            web.Response(status=404)
            if self.prove is None
            else web.Response(text=self.prove(request.match_info["nonce"]))
        )

    async def _abort(self, request: web.Request) -> web.Response:
        """As a worker does it: the leases of that request end. ``aborted`` says whether there were any."""
        request_id = request.match_info["request_id"]
        self.aborts.append(request_id)
        self.abort_headers.append({name.lower(): value for name, value in request.headers.items()})
        await self.abort_gate.wait()
        leases = [f"lease{self.name}{i}" for i, owner in enumerate(self.lease_owners, 1) if owner == request_id]
        if self.store is not None and leases:
            self.store.release(self.engine_id, leases)
        return web.json_response({"aborted": bool(leases)}, status=self.abort_status)

    async def _told(self, request: web.Request) -> web.Response:
        self.told.append((request.match_info["what"], request.headers.get("authorization")))
        return web.json_response({"error": {"message": "no", "code": "worker_leaving"}}, status=self.told_status)

    async def _release(self, request: web.Request) -> web.Response:
        lease_ids = msgspec.json.decode(await request.read(), type=leases_at_p.LeaseIds).lease_ids
        self.releases.append(lease_ids)
        await self.release_gate.wait()
        if self.release_answer is not None:
            status, text = self.release_answer
            return web.Response(status=status, text=text)
        return web.json_response({"released": len(lease_ids)})

    async def _held(self, request: web.Request) -> web.Response:
        lease_ids = msgspec.json.decode(await request.read(), type=leases_at_p.LeaseIds).lease_ids
        self.asked_held.append(lease_ids)
        await self.held_gate.wait()
        held = [one for one in lease_ids if self.holds is None or one in self.holds]
        return web.json_response({"held": held}, status=self.held_status)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model", **self.card}]})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        act = Refuse(503, self._is_dead()) if self.dead else self.script.popleft() if self.script else None
        try:
            if isinstance(act, Hang):
                await act.release.wait()
                if act.reset:
                    act = Reset()
            if isinstance(act, Refuse):
                return web.json_response(act.body, status=act.status)
            if isinstance(act, Reset):
                assert request.transport is not None
                if act.sent:
                    request.transport.write(act.sent)
                    await asyncio.sleep(0)
                request.transport.abort()
                return web.Response()
            chat = request.path.endswith("/chat/completions")
            if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
                prefilled = self._prefilled(chat, request.headers["x-request-id"], body, self._choice(request))
                if isinstance(act, HalfAnswer):
                    return await self._send_half(request, json.dumps(prefilled).encode(), act)
                return web.json_response(prefilled)
            return await self._decode(request, body, chat, act)
        except (asyncio.CancelledError, ConnectionResetError):
            self.num_disconnects += 1
            raise

    async def _tokenize(self, request: web.Request) -> web.Response:
        """A token for each message, or as the script says."""
        body = json.loads(await request.read())
        self.bodies.append(body)
        act = self.script.popleft() if self.script else None
        if isinstance(act, Refuse):
            return web.json_response(act.body, status=act.status)
        tokens = [FIRST_TOKEN] * len(body.get("messages", ()))
        return web.json_response({"count": len(tokens), "max_model_len": 1000, "tokens": tokens, "token_strs": None})

    async def _detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": " ".join(map(str, json.loads(await request.read())["tokens"]))})

    def _is_dead(self) -> dict[str, Any]:
        return {"error": {"message": "rank 0 was killed", "type": "server_error", "code": self.dead}}

    def _given(self, body: dict[str, Any]) -> list[int]:
        """What a request goes on after."""
        given = ((body.get("kv_transfer_params") or {}).get("resume") or {}).get("token_ids", [])
        assert self.takes_any_ids or given == list(range(FIRST_TOKEN, FIRST_TOKEN + len(given))), given
        return list(given)

    def _choice(self, request: web.Request) -> Choice:
        """Which choice it computes, as far as it understands that."""
        return (self.ours and choice_in(request.headers.get(HEADER, ""))) or ALONE

    def _head(self, chat: bool, kind: str, choice: Choice) -> dict[str, Any]:
        answer_id = f"{'chat' if chat else ''}cmpl-{choice.answer_id}"
        return {"id": answer_id, "object": kind, "created": choice.created, "model": self.model}

    def _whole(self, chat: bool, text: str, num_tokens: int, finish: str, choice: Choice = ALONE) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, **self.message_fields}
        content = {"message": message} if chat else {"text": text}
        return {
            **self._head(chat, "chat.completion" if chat else "text_completion", choice),
            "choices": [
                {
                    "index": choice.index,
                    **content,
                    "logprobs": self.logprobs_of.get(choice.index),
                    "finish_reason": finish,
                }
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": num_tokens, "total_tokens": 3 + num_tokens},
        }

    def _prefilled(self, chat: bool, request_id: str, body: dict[str, Any], choice: Choice) -> dict[str, Any]:
        given = self._given(body)
        text = word(len(given), choice.index) if given or choice is not ALONE else self.first_text
        answer = self._whole(chat, text, 1 + len(given), self.finish_reason, choice)
        answer["usage"]["prompt_tokens_details"] = {"cached_tokens": len(given)}
        num_readers = body["kv_transfer_params"].get("num_readers", 1)
        if self.finish_reason == "stop" and num_readers == 1:
            return {**answer, "kv_transfer_params": None}
        if self.is_full:
            return answer
        self.lease_owners.append(request_id)
        params: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 1,
            "remote_block_ids": [[1, 2, 3]],
            "remote_num_tokens": 3 + len(given),
            "tp_size": 1,
        }
        if self.ours:
            lease_id = self.only_lease or f"lease{self.name}{self.num_leases}"
            params |= {"lease_id": lease_id, "promise": 2**64 - 1}
            params |= {"first_token": self.first_token + len(given), "output_token_ids": given}
            params |= {"num_cached_tokens": len(given)}
            if num_readers > 1:
                self.readers[lease_id] = (num_readers, {0} if self.finish_reason == "stop" else set())
            if self.store is not None:
                self.store.grant(self.engine_id, [lease_id], 6000)
        return {**answer, "kv_transfer_params": params}

    @staticmethod
    async def _send_half(request: web.Request, whole: bytes, act: HalfAnswer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": str(len(whole))})
        await response.prepare(request)
        if act.spoil:
            await response.write(act.spoil.ljust(len(whole)))
            return response
        await response.write(whole[: len(whole) // 2])
        await asyncio.Event().wait()
        return response

    def _read(self, params: dict[str, Any]) -> None:
        """Tell P, as a D does that has read: its lease ends when all readers have."""
        name = params.get("lease_id")
        if self.store is None or not name:
            return
        lease_id, reader = lease_of_reader(name)
        num, have_read = self.readers.get(lease_id, (1, set()))
        have_read.add(reader)
        if len(have_read) == num:
            self.store.reap(params["remote_engine_id"], [lease_id], [lease_id])

    async def _decode(self, request: web.Request, body: dict[str, Any], chat: bool, act: Any) -> web.StreamResponse:
        params = body.get("kv_transfer_params") or {}
        self._read(params)
        choice = self._choice(request)
        wanted = body.get("max_completion_tokens") or body.get("max_tokens", 4 if chat else 16)
        echoed = self.echoed if body.get("echo") and "resume" not in params else []
        if not body.get("stream"):
            text = "".join([*echoed, *(word(i, choice.index) for i in range(wanted))])
            return web.json_response(self._whole(chat, text, wanted, "length", choice))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if isinstance(act, Raw):
            return await self._send_raw(request, response, act)
        names = self.names_tokens and request.headers.get("x-baton-token-ids") == "1"
        begin = len(params.get("output_token_ids", self._given(body))) + (params.get("first_token", -1) >= 0)
        if chat and not begin and "resume" not in params:
            await self._event(response, chat, {"delta": {"role": "assistant", "content": ""}}, choice=choice)
        for part in echoed:
            await self._event(response, chat, {"text": part}, line=b":\n" if names else b"", choice=choice)
        for i in range(begin, wanted):
            if isinstance(act, StreamThen) and i - begin == act.num_tokens:
                return await self._break_off(request, response, act)
            line = b"" if not names else b":end\n" if i == wanted - 1 else b":%d\n" % (FIRST_TOKEN + i)
            text = word(i, choice.index)
            content = {"delta": {"content": text}} if chat else {"text": text}
            await self._event(response, chat, content, line=line, choice=choice)
        line = b":end\n" if names and begin >= wanted else b""
        last = {"delta": {}} if chat else {"text": ""}
        await self._event(response, chat, last, finish="length", line=line, choice=choice)
        if isinstance(act, StreamThen):
            return await self._break_off(request, response, act)
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = self._whole(chat, "", wanted, "length")["usage"]
            await self._send(response, {**self._head(chat, "chunk", choice), "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    async def _send_raw(request: web.Request, response: web.StreamResponse, act: Raw) -> web.StreamResponse:
        assert request.transport is not None
        for piece in act.pieces:
            if piece is None:
                await act.go.wait()
            else:
                await response.write(piece)
        if act.then == "die":
            request.transport.close()
        elif act.then == "hang":
            await asyncio.Event().wait()
        while act.then == "ping":
            await response.write(KEEP_ALIVE)
            await asyncio.sleep(0.02)
        return response

    async def _break_off(
        self, request: web.Request, response: web.StreamResponse, act: StreamThen
    ) -> web.StreamResponse:
        assert request.transport is not None
        if act.num_tokens:
            await act.go.wait()
        if act.then == "die":
            request.transport.abort()
        elif act.then == "hang":
            await asyncio.Event().wait()
        elif act.then == "error":
            await self._send(response, {"error": {"message": "broke", "type": "server_error", "code": self.error_code}})
        return response

    async def _event(
        self,
        response: web.StreamResponse,
        chat: bool,
        content: dict[str, Any],
        finish: str | None = None,
        line: bytes = b"",
        choice: Choice = ALONE,
    ) -> None:
        shown = {"index": choice.index, **content, "logprobs": None, "finish_reason": finish}
        kind = "chat.completion.chunk" if chat else "text_completion"
        await self._send(response, {**self._head(chat, kind, choice), "choices": [shown]}, line)

    @staticmethod
    async def _send(response: web.StreamResponse, event: dict[str, Any], line: bytes = b"") -> None:
        await response.write(line + b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")
