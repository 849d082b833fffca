"""Answers to clients of HTTP/1.0, which know no chunks: a stream ends with its connection."""

from __future__ import annotations

from baton_serve.core.net.answers import CLOSE, STATUS_LINES
from baton_serve.core.net.served.call import HttpCall


class OldCall(HttpCall):
    """A call whose stream has no chunks. Its connection does not stay, so ``keep_alive`` is False."""

    __slots__ = ()

    def start(self, head: bytes, data: bytes) -> None:
        """As ``HttpCall.start``."""
        if not self.disconnected:
            self.response_started = True
            self.transport.write(b"%b%b%b%b\r\n%b" % (STATUS_LINES[200], head, self.more_headers, CLOSE, data))

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
