"""The process that tries forms: ``python -m baton_serve.workers.grammar.trial.main FD PARENT_PID``.

FD is the inherited end of a stream socket for the messages of ``messages.py``. The process ends when the worker's main
process closes the socket, and when that dies.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO

from baton_serve.core.process.frames import encode, receive
from baton_serve.core.process.parent_death import end_with
from baton_serve.workers.grammar.matchers import tokenizer_of
from baton_serve.workers.grammar.trial.attempt import attempt
from baton_serve.workers.grammar.trial.messages import BEGIN, TRY, Tried

#: What is said of every form if llguidance cannot read the model's tokenizer.
UNREADABLE = "this model's tokenizer cannot be used with grammars"


def main(arguments: Sequence[str]) -> int:
    """Serve the worker that has started this process; returns the exit status."""
    descriptor, parent_pid = map(int, arguments)
    end_with(parent_pid)
    with socket.socket(fileno=descriptor) as sock, sock.makefile("rb") as stream:
        serve(stream, sock.sendall)
    return 0


def serve(stream: BinaryIO, send: Callable[[bytes], None]) -> None:
    """Answer until the main process closes its end."""
    begin = receive(stream, BEGIN)
    if begin is None:
        return
    try:
        tokenizer = tokenizer_of(begin.vocabulary, begin.vocab_size)
    except ValueError:
        tokenizer = None
    while (form := receive(stream, TRY)) is not None:
        tried = Tried("", UNREADABLE) if tokenizer is None else attempt(tokenizer, form, begin.limits)
        send(encode(tried))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
