"""Which tokens an event of a stream accounts for, told to the router in SSE comment lines. Pure.

A router that has the ids can let another worker go on from here. They are asked for with a header, because a client
that is not told needs no such lines; the bytes of the ``data:`` lines are the same with and without.

Tokens that give no text leave a stream silent, and whoever reads it takes silence for a worker that hangs. So while
tokens come, an event without ``data:`` says so: to a client it is none.
"""

from __future__ import annotations

#: Asks for the lines, with the value ``ASKED``.
HEADER = b"x-baton-token-ids"
ASKED = "1"
#: Before the events that end the answer: they are the last, and go together.
END = b":end\n"
#: Tokens have come, and nothing more is said of them.
SIGN_OF_LIFE = b":\n\n"
#: Longest silence while tokens come, seconds: a small part of any time that a reader waits.
SILENCE_S = 1.0


class TokenIdLines:
    """The lines of one stream. ``tokens`` grows as tokens are sampled; what it holds now needs no line."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._num_told = len(tokens)

    def next_line(self) -> bytes:
        """For the event that comes now: the tokens since the last one."""
        new = self._tokens[self._num_told :]
        self._num_told = len(self._tokens)
        return b":%d\n" % new[0] if len(new) == 1 else b":%b\n" % b",".join([b"%d" % token for token in new])
