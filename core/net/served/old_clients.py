"""Answers to clients of HTTP/1.0, which know no chunks: a stream ends with its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from baton_serve.core.net.served.call import CLOSE, HttpCall

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class OldCall(HttpCall):
    """A call whose stream has no chunks. Its connection does not stay, so ``keep_alive`` is False."""

    __slots__ = ()

    def start(self, head: bytes, data: bytes) -> None:
        """As ``HttpCall.start``."""
        if not self.disconnected:
            self.response_started = True
            self.transport.write(b"%b%b%b%b\r\n%b" % (STATUS_LINE[200], head, self.more_headers, CLOSE, data))

    def write(self, data: bytes) -> bool:
        """As ``HttpCall.write``."""
        if self.disconnected:
            return True
        self.transport.write(data)
        return not self.is_blocked

    def end(self) -> None:
        """As ``HttpCall.end``."""
        if not self.disconnected:
            self._end()


def without_chunks(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """``app``, but an answer of ``cycle`` whose length is not known is sent without chunks."""

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        is_stream = False

        async def send_old(message: ASGISendEvent) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                is_stream = not any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                if is_stream:
                    cycle.chunked_encoding = False
            elif is_stream and message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))  # uvicorn counts down, and ends at 0
            await send(message)

        await app(scope, receive, send_old)

    return answer
