"""A worker that computes nothing: it answers prefills with a hand-off, and streams tokens at a fixed pace.

``python -m bench.stub`` listens on two free ports (P, D), prints them as one JSON line and serves until killed.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httptools
import orjson
import uvloop

_BLOCKS_PER_KB = 16
_TOKEN = b'data: {"id":"chatcmpl-x","object":"chat.completion.chunk","created":1,"model":"stub","choices":[%s]}\n\n'
_CHUNK = _TOKEN % b'{"index":0,"delta":{"content":" tok"},"logprobs":null,"finish_reason":null}'
_LAST = _TOKEN % b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}' + b"data: [DONE]\n\n"
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class StubProtocol(asyncio.Protocol):
    """One connection. The field ``user`` of a request is the pace: microseconds between two tokens."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._answer({"object": "list", "data": [{"id": "stub"}]})
            return
        raw = b"".join(self._body)
        body = orjson.loads(raw)
        if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            self._answer(self._whole(1) | {"kv_transfer_params": _params(len(raw))})
        elif body.get("stream"):
            self._write(_STREAM_HEAD)
            self._token(int(body["max_tokens"]), int(body.get("user", 0)) / 1e6)
        else:
            self._answer(self._whole(int(body["max_tokens"])))

    def _token(self, left: int, pace_s: float) -> None:
        if left == 0:
            self._write(_chunked(_LAST) + b"0\r\n\r\n")
            return
        self._write(_chunked(_CHUNK))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(pace_s, self._token, left - 1, pace_s)

    def _answer(self, body: dict[str, Any]) -> None:
        data = orjson.dumps(body)
        self._write(_JSON_HEAD % len(data) + data)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    @staticmethod
    def _whole(num_tokens: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": " tok" * num_tokens}
        return {
            "id": "chatcmpl-x",
            "object": "chat.completion",
            "created": 1,
            "model": "stub",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1 + num_tokens},
        }


def _params(num_body_bytes: int) -> dict[str, Any]:
    """A hand-off as an engine without leases answers it, with as many blocks as such a prompt has."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "stub",
        "remote_block_ids": [list(range(1 + num_body_bytes * _BLOCKS_PER_KB // 1024))],
    }


async def main() -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(StubProtocol, "127.0.0.1", 0, backlog=4096) for _ in range(2)]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
