"""What a body is made of is counted exactly, and before any of it is built."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.core.protocol.openai.json_body import BodyLimits, parse_body

LIMITS = BodyLimits(max_messages=100, max_values=10_000)
#: Text that looks like JSON, and all ways to end a string too early or too late.
TEXTS = st.text(st.sampled_from('{}[]:,"\\n/uAé€'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def num_nodes(value: Any) -> int:
    """Objects, arrays and keys."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(num_nodes(one) for one in value.values())
    return 1 + sum(num_nodes(one) for one in value) if isinstance(value, list) else 0


def num_commas(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return max(0, len(value) - 1) + sum(num_commas(one) for one in inner)


def passes(raw: bytes, *, max_nodes: int, max_values: int) -> bool:
    limits = BodyLimits(max_messages=0, more_nodes=max_nodes, max_values=max_values)
    assert limits.max_nodes == max_nodes
    try:
        limits.check_bytes(raw)
    except BadRequestError as error:
        assert (error.status, error.code) == (400, "array_above_max_length")
        return False
    return True


@given(VALUES)
def test_counts_are_those_of_the_parsed_body_whatever_its_texts_look_like(value: Any) -> None:
    nodes, values = num_nodes(value), num_commas(value) + 1
    for raw in (orjson.dumps(value), orjson.dumps(value, option=orjson.OPT_INDENT_2)):
        assert passes(raw, max_nodes=nodes, max_values=values)
        assert nodes == 0 or not passes(raw, max_nodes=nodes - 1, max_values=values)
        assert values == 1 or not passes(raw, max_nodes=nodes, max_values=values - 1)


@pytest.mark.parametrize(
    ("field", "what"),
    [
        (b'"messages":[' + b'{"role":"user","content":""},' * 4000 + b"{}]", "7696 objects, arrays and keys"),
        (b'"x":{' + b",".join(b'"%d":1' % i for i in range(9000)) + b"}", "7696 objects, arrays and keys"),
        (b'"metadata":[' + b"[[[]]]," * 5000 + b"[]]", "7696 objects, arrays and keys"),
        (b'"prompt":[' + b"7," * 10_000 + b"7]", "10000 values"),
        (b'"prompt":[' + b'"",' * 20_000 + b'""]', "17696 strings"),
    ],
    ids=["messages", "keys", "nesting", "token ids", "strings"],
)
def test_a_body_of_too_many_parts_never_reaches_the_parser(field: bytes, what: str) -> None:
    with pytest.raises(BadRequestError, match=f"^The JSON body of your request has more than {what}.$"):
        # The parser would say that this is not JSON.
        parse_body(b'{"model":"m",' + field + b" and something that is not JSON", LIMITS)


def test_as_many_token_ids_as_are_allowed_are_taken() -> None:
    prompt = list(range(LIMITS.max_values - 1))
    assert parse_body(orjson.dumps({"model": "m", "prompt": prompt}), LIMITS)["prompt"] == prompt


def test_a_text_that_looks_like_json_is_not_counted_as_json() -> None:
    code = 'if x: y = [{"a": 1, "b": "\\""}]\n' * 20_000
    body = {"model": "m", "messages": [{"role": "user", "content": code}]}
    assert parse_body(orjson.dumps(body), LIMITS) == body


def test_deep_nesting_has_a_sentence_of_its_own() -> None:
    with pytest.raises(BadRequestError, match=r"^We could not parse .*: it is nested too deeply\.$"):
        parse_body(b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}", LIMITS)


def test_a_body_for_which_there_is_no_memory_is_not_called_wrong() -> None:
    """In a process of its own, whose memory is bounded."""
    program = """
import resource, sys
from baton_serve.core.protocol.openai.json_body import BodyLimits, parse_body
raw = b'{"prompt": "%b"}' % (b"x" * (16 << 20))
limits = BodyLimits(10, 10)
assert parse_body(raw, limits)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20),) * 2)
try:
    parse_body(raw, limits)
except MemoryError:
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 7


def test_a_chat_of_the_largest_size_passes() -> None:
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    message = dict.fromkeys(("refusal", "audio", "function_call", "tool_calls", "reasoning_content"))
    message |= {"role": "assistant", "annotations": [], "content": [part] * 4}
    body = {"model": "m", "messages": [message] * LIMITS.max_messages, "logit_bias": {str(i): 1 for i in range(1024)}}
    assert parse_body(orjson.dumps(body), LIMITS) == body
    with pytest.raises(BadRequestError, match="At most 100 messages are allowed"):
        parse_body(orjson.dumps({"messages": [{}] * 101}), LIMITS)
    with pytest.raises(BadRequestError, match="At most 400 parts of messages are allowed"):
        parse_body(orjson.dumps({"messages": [{"content": [0] * 401}]}), LIMITS)


def test_more_stop_strings_than_are_allowed_are_refused() -> None:
    limits = BodyLimits(max_messages=1, max_values=100, max_stop_strings=3)
    for stop in (None, "a", [], ["a", "b", "c"], 5):
        limits.check_stop({"stop": stop})
    with pytest.raises(BadRequestError, match=r"^At most 3 stop strings are allowed, got 4\.$") as caught:
        limits.check_stop({"stop": ["a"] * 4})
    assert (caught.value.param, caught.value.code) == ("stop", "array_above_max_length")
