"""Tries one form in a fork of this process, which the system ends when it exceeds its limits. Linux only: elsewhere
memory has no limit.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from baton_serve.core.process.parent_death import end_with
from baton_serve.workers.grammar.matchers import error_at_start, matcher_of
from baton_serve.workers.grammar.notation import NotationError, grammar_of
from baton_serve.workers.grammar.sentences import in_words
from baton_serve.workers.grammar.trial.messages import TRIED, Limits, Tried, Try

if TYPE_CHECKING:
    from llguidance import LLTokenizer

TOO_LONG = "it takes too long to compile"
TOO_MUCH = "it takes too much memory to compile"
TOO_DEEP = "it is too deeply nested to be compiled"
#: What a fork has died of, by its signal. Rust aborts without memory.
_DEATHS = {signal.SIGPROF: TOO_LONG, signal.SIGABRT: TOO_MUCH, signal.SIGSEGV: TOO_DEEP, signal.SIGBUS: TOO_DEEP}
_UNKNOWN = "it could not be tried on this worker"


def attempt(tokenizer: LLTokenizer, form: Try, limits: Limits) -> Tried:
    """The form's grammar, which can be compiled and begun within the limits, or what is wrong with the form.

    A fork costs milliseconds, has the vocabulary already, and leaves this process as it was.
    """
    reading, writing = os.pipe()
    parent_pid, pid = os.getpid(), os.fork()
    if pid == 0:
        _end_in_fork(parent_pid, writing, tokenizer, form, limits)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        error = _DEATHS.get(signal.Signals(os.WTERMSIG(status)), "")
        return Tried("", error or _UNKNOWN, is_final=bool(error))
    return TRIED.decode(told) if told else Tried("", _UNKNOWN, is_final=False)


def _end_in_fork(parent_pid: int, writing: int, tokenizer: LLTokenizer, form: Try, limits: Limits) -> None:
    try:
        end_with(parent_pid)
        _limit(limits)
        told = msgspec.msgpack.encode(_tried(tokenizer, form))
        signal.setitimer(signal.ITIMER_PROF, 0)
        with os.fdopen(writing, "wb") as answer:
            answer.write(told)
    except MemoryError:
        os.abort()
    finally:
        os._exit(0)


def _limit(limits: Limits) -> None:
    # What Rust says while it dies is for no one's log, and a core would be as large as the limit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if (size := _address_space()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (size + limits.memory_bytes,) * 2)
    # Seconds of the processor, so that forms on a busy machine do not count as slow. Nothing handles the signal.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)


def _address_space() -> int | None:
    """Bytes of this process's address space; None where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else None


def _tried(tokenizer: LLTokenizer, form: Try) -> Tried:
    try:
        grammar = grammar_of(form.kind, form.text)
        error = error_at_start(matcher_of(tokenizer, grammar))
    except NotationError as problem:
        return Tried("", str(problem))
    except MemoryError:
        raise
    except Exception as problem:  # noqa: BLE001 (of a library that compiles what any client sends)
        error = str(problem) or type(problem).__name__
    return Tried("", in_words(error)) if error else Tried(grammar)
