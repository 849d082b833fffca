"""Forms that harm who compiles them, the process that tries them, and whether a text follows one."""

from __future__ import annotations

import asyncio
from functools import cache

from llguidance import LLMatcher, LLTokenizer

from baton_serve.core.process.socket_child import Streams
from baton_serve.core.protocol.openai.structured import Kind
from baton_serve.core.protocol.steps import Vocabulary
from baton_serve.workers.grammar.notation import grammar_of
from baton_serve.workers.grammar.trial.messages import Limits
from baton_serve.workers.grammar.trial.process import TrialProcess
from tests.kits.whole import reference

#: They take minutes and gigabytes to compile; the last one some seconds and one gigabyte.
DEADLY: list[tuple[Kind, str]] = [
    ("json_schema", '{"allOf":[{"type":"integer","multipleOf":9973},{"type":"integer","multipleOf":9967}]}'),
    ("grammar", 'start: %json {"type":"integer","multipleOf":99999989}'),
    ("grammar", "start: T\nT: " + " & ".join(f"/(.*a.{{{number}}}.*)/" for number in range(50))),
    ("regex", "a?" * 20_000),
]
#: They compile, and fail at their first mask.
ENDLESS: list[tuple[Kind, str]] = [
    ("grammar", "start: start"),
    ("grammar", "root ::= root"),
    ("json_schema", '{"$ref":"#"}'),
]


class WatchedTrial(TrialProcess):
    """Says when its process starts and ends.

    ``started`` is set when it runs; a task that waits for that goes on after the first form has been sent. ``ended`` is
    set when it is gone.
    """

    def __init__(self, vocab_size: int, limits: Limits) -> None:
        super().__init__(vocab_size, limits)
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    async def _start(self, vocabulary: Vocabulary) -> Streams:
        streams = await super()._start(vocabulary)
        self.started.set()
        return streams

    async def _end(self) -> None:
        await super()._end()
        self.ended.set()


def follows(kind: Kind, form: str, text: str) -> bool:
    """Whether the text is one that the form may end with, as llguidance judges the form's grammar."""
    tokenizer = _tokenizer()
    matcher = LLMatcher(tokenizer, grammar_of(kind, form), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = [token for byte in text.encode() for token in tokenizer.greedy_tokenize(bytes([byte]).decode("latin-1"))]
    if any(ord(letter) > 127 for letter in text):
        tokens = tokenizer.tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(reference.tokenizer().backend_tokenizer.to_str(), eos_token=[0])
