"""The token ids of each event of a stream, sent to the router in SSE comment lines. Pure.

With these ids a router can migrate the stream to another worker. The router asks for the ids with a header; the
``data:`` lines are the same with and without the ids.

While sampled tokens have no text yet, the stream would be silent, and the router would think that the worker hangs. So
comments are sent meanwhile, which a client ignores.
"""

from __future__ import annotations

#: The header that asks for the lines, with the value ``ASKED``.
HEADER = b"x-baton-token-ids"
ASKED = b"1"
#: The SSE comment before the last events of an answer; it is sent together with them.
END = b":end\n"
#: The line before an event that is not about the answer's tokens: a part of an echoed prompt.
NONE = b":\n"
#: The comment that only says that tokens are sampled.
KEEP_ALIVE = b":\n\n"
#: Longest silence in seconds while tokens are sampled: much shorter than any timeout of a reader.
MAX_SILENCE_S = 1.0


class TokenIdLines:
    """Makes the lines of one stream. ``tokens`` is the list of the stream's transcript, which keeps growing.

    Tokens that are in the list at construction get no line: the client has them already.
    """

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._num_told = len(tokens)

    def next_line(self) -> bytes:
        """The line before the next event: the tokens since the last line."""
        new = self._tokens[self._num_told :]
        self._num_told = len(self._tokens)
        return b":%d\n" % new[0] if len(new) == 1 else b":%b\n" % b",".join([b"%d" % token for token in new])
