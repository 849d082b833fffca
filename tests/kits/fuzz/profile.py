"""How much is tried, and what all areas share: the profile and the counts.

The quick profile, of ``make test``, is half of the inputs of ``BATON_FUZZ=all``, which ``make test-faults`` tries: the
same ones in every run. ``BATON_FUZZ=long`` tries more, other ones in every run: their seed is printed, and
``BATON_FUZZ_SEED`` repeats it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import json
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

import httpx
import orjson
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st

from baton_serve.core.protocol.excerpts import MAX_CHARS
from tests.kits.patience import PATIENCE_S

Test = TypeVar("Test", bound="Callable[..., Any]")

NAME = os.environ.get("BATON_FUZZ", "quick")
LONG = NAME == "long"
SEED = int(os.environ.get("BATON_FUZZ_SEED") or secrets.randbits(32))
#: How much the profile tries of what a test asks for.
FACTOR = {"quick": 0.5, "all": 1.0, "long": float(os.environ.get("BATON_FUZZ_FACTOR") or 20)}[NAME]

#: Refusals that are not the client's fault, and no mistake: no worker, no time.
BUSY = (502, 503, 504)
#: Inputs that were tried, by area.
tried: Counter[str] = Counter()


def profile() -> str:
    """In words."""
    return f"long, BATON_FUZZ_SEED={SEED}" if LONG else f"{NAME}, always the same ones"


def fuzz(num_examples: int) -> Callable[[Test], Test]:
    """Decorate a hypothesis test: half as many inputs in the quick profile."""
    chosen = settings(
        max_examples=max(1, int(num_examples * FACTOR)),
        derandomize=not LONG,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )

    def decorate(test: Test) -> Test:
        inner = test.hypothesis.inner_test  # type: ignore[attr-defined]
        if inspect.iscoroutinefunction(inner):
            test.hypothesis.inner_test = _bounded(inner)  # type: ignore[attr-defined]
        return seed(SEED)(chosen(test)) if LONG else chosen(test)

    return decorate


def _bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The same for an input that hangs: it fails, so that it is shrunk and shown."""

    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test(*args, **kwargs)

    return bounded


# --- inputs

#: Whatever JSON can say, and what orjson and the standard library disagree about.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def as_json(value: Any) -> bytes:
    """Integers of any size as well, which orjson cannot write."""
    return json.dumps(value).encode()


#: Texts that are JSON, almost JSON, or hard to read.
NASTY_TEXTS = (
    b"",
    b"null",
    b"NaN",
    b"[" * 100_000,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b'{"model":' + b"[" * 900 + b"]" * 900 + b"}",
    b"\xff\xfe{",
    b'{"model":"\xff"}',
    b'{"model":"\\ud800"}',
    b'{"\\ud800":1}',
    b"\x00" * 1000,
    b'{"model":' + b"9" * 10_000 + b"}",
    b'{"model":-1e999}',
    b'{"model":NaN,"messages":Infinity}',
    b"{" + b",".join(b'"k%d":1' % i for i in range(100_000)) + b"}",
    b'{"model":"m","model":"n","messages":[],"messages":[{}]}',
    b"[" + b"{}," * 100_000 + b"{}]",
    b'{"model":"m","messages":[' + b'{"role":"user","content":1},' * 20_000 + b"{}]}",
    b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 1_000_000 + b'"}],"max_tokens":0}',
    b'{"model":"m","prompt":[' + b"-1," * 100_000 + b"0]}",
    b'{"model":"m","logit_bias":{' + b",".join(b'"%d":1e9' % i for i in range(2_000)) + b'},"prompt":"x"}',
    b'{"model":"m","prompt":"x","stop":[' + b'"",' * 50_000 + b'""]}',
)


def mutated(valid: bytes) -> st.SearchStrategy[bytes]:
    """A valid text with a few bytes changed, doubled or cut."""

    def change(args: tuple[list[tuple[int, int]], int]) -> bytes:
        changes, end = args
        data = bytearray(valid)
        for place, value in changes:
            data[place % len(data)] = value
        return bytes(data[: len(data) if end >= len(data) else end])

    places = st.lists(st.tuples(st.integers(0, len(valid) - 1), st.integers(0, 255)), max_size=4)
    return st.tuples(places, st.integers(0, 2 * len(valid))).map(change)


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The data in pieces; places behind its end are none."""
    ends = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends)]


#: With characters that no terminal should be sent.
LONG_TEXT = "Z\x1b[2J\r\n\u202e" + "Z" * 5000


def with_long_text(valid: Any) -> Iterator[Any]:
    """A JSON value with ``LONG_TEXT`` in one place: as each value in it, within each, and as one more key of each."""
    yield from (LONG_TEXT, [LONG_TEXT], {LONG_TEXT: LONG_TEXT})
    if isinstance(valid, dict):
        yield {**valid, LONG_TEXT: 1}
        for name, value in valid.items():
            yield from ({**valid, name: other} for other in with_long_text(value))
    elif isinstance(valid, list):
        for index, value in enumerate(valid):
            yield from ([*valid[:index], other, *valid[index + 1 :]] for other in with_long_text(value))


# --- verdicts


def check_error(answer: httpx.Response, *allowed: int) -> None:
    """Success, or an error as OpenAI's clients or Anthropic's read it; never a mistake of ours."""
    if answer.status_code < 400:
        return
    assert answer.status_code < 500 or answer.status_code in allowed, (answer.status_code, answer.content[:300])
    body = orjson.loads(answer.content)
    error = body["error"]
    assert set(error) >= ({"message", "type"} if body.get("type") == "error" else {"message", "type", "param", "code"})
    assert isinstance(error["message"], str) and error["message"], error
    assert len(answer.content) < 10_000, "an error that repeats what it was sent"
    for text in filter(None, (error["message"], error.get("param"))):
        assert text.isprintable(), text


def check_excerpts(answer: httpx.Response) -> None:
    """An answer to something with ``LONG_TEXT`` in it: of that it repeats a little, once in each field."""
    check_error(answer, *BUSY)
    if answer.status_code >= 400:
        for text in orjson.loads(answer.content)["error"].values():
            assert text is None or str(text).count("Z") <= MAX_CHARS, text
