"""How a call over HTTP fails.

CallError
├── ConnectError        nothing reached the server
├── ConnectionLost      the connection broke
│   └── NotHttp         the answer was not HTTP, or its head was larger than allowed
├── AnswerTooLarge      the answer has more bytes than the caller takes; the server has done nothing wrong
└── CallTimeout         no answer in time
"""

from __future__ import annotations


class CallError(Exception):
    """A call failed. ``str()`` is one line for logs and clients; it never names an address."""


class ConnectError(CallError):
    """No connection could be made, so that nothing reached the server, unless ``was_sent``."""

    #: The request had been sent on a kept connection, which broke when some of it may have been taken; then no new
    #: connection could be made.
    was_sent = False


class ConnectionLost(CallError):
    """The connection broke while a request was under way. An OSError that broke it is the ``__cause__``."""

    #: Whether the server's system has confirmed bytes of the request. False: it has confirmed none, so that almost
    #: surely nothing ran.
    was_taken = True


class NotHttp(ConnectionLost):
    """The answer was not HTTP, or its head was larger than allowed. The connection is closed."""


class AnswerTooLarge(CallError):
    """The answer has more bytes than the caller takes."""


class CallTimeout(CallError):
    """No answer came in time."""
