"""The check that a router has asked whom it says, and passed on what they said."""

from __future__ import annotations

import pytest

from bench.router.harness.engines import Counters
from bench.router.harness.flow import Flow, is_right

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
EVENT = 'data: {"choices":[]}\n\n'
END = "data: [DONE]\n\n"


def test_questions_are_counted_from_a_point_on() -> None:
    assert Counters(5, 4, 3, 2).since(Counters(1, 1, 1, 1)) == (4, 3, 2, 1)


def test_flows_take_different_questions() -> None:
    assert len({flow.legs(8) for flow in Flow}) == len(Flow)
    assert [flow for flow in Flow if flow.waits_for_p] == [Flow.P_THEN_D]


@pytest.mark.parametrize(
    ("path", "stream", "body", "right"),
    [
        (CHAT, True, EVENT * 5 + END, True),
        (CHAT, True, EVENT * 4 + END, False),
        (TEXT, True, EVENT * 4 + END, True),
        (TEXT, True, EVENT * 5, False),
        (TEXT, False, '{"text":" tok tok tok tok","usage":{"completion_tokens":4}}', True),
        (TEXT, False, '{"text":" tok tok tok","usage":{"completion_tokens":4}}', False),
        (TEXT, False, '{"text":" tok tok tok tok","usage":{"completion_tokens": 3}}', False),
        (TEXT, False, '{"error":"no"}', False),
    ],
)
def test_an_answer_has_all_tokens_and_its_end(path: str, stream: bool, body: str, right: bool) -> None:
    assert is_right(path, stream, body) is right
