"""What the drill of the containers makes of what it sees; no container is needed to tell."""

from __future__ import annotations

from collections import Counter

import httpx2
import openai
import pytest

from deploy.drill.deployment import ROOT, compose_file, drill_file
from deploy.drill.errors import DrillError
from deploy.drill.streams import DIFFERS, EXACT, LOST, demand, outcome, told

REQUEST = httpx2.Request("POST", "http://router/v1/chat/completions")
BROKEN = openai.APIConnectionError(request=REQUEST)
ABORTED = openai.APIError("aborted", REQUEST, body={"code": "request_cancelled"})


@pytest.mark.parametrize(
    ("text", "error", "expected"),
    [
        ("a lease", None, EXACT),
        ("a leash", None, DIFFERS),
        ("a", None, DIFFERS),  # it ended early, and said that it was whole
        ("a lease is", None, DIFFERS),
        ("a le", BROKEN, LOST),
        ("", BROKEN, LOST),
        ("a lot", BROKEN, DIFFERS),
        ("a le", openai.APITimeoutError(request=REQUEST), "timeout"),
        ("a le", ABORTED, "request_cancelled"),
        ("a le", openai.OpenAIError(), "OpenAIError"),
    ],
)
def test_one_word_says_what_a_client_got(text: str, error: Exception | None, expected: str) -> None:
    assert outcome(text, error, "a lease") == expected


def test_streams_that_end_otherwise_than_demanded_are_told() -> None:
    demand(Counter({EXACT: 2}), {EXACT: 2}, "in peace")
    with pytest.raises(DrillError, match=r"^in peace: 1 exact, 1 lost; expected 2 exact$"):
        demand(Counter({LOST: 1, EXACT: 1}), {EXACT: 2}, "in peace")
    with pytest.raises(DrillError):
        demand(Counter(), {EXACT: 2}, "in peace")
    assert told(Counter({LOST: 1, EXACT: 0})) == "1 lost"


def test_the_drill_starts_what_users_start_on_ports_that_are_free() -> None:
    users, drills = compose_file()["services"], drill_file()["services"]
    assert drills["router"].pop("ports") == ["127.0.0.1::8000"]
    del users["router"]["ports"]
    for role in ("prefill", "decode"):
        assert set(drills[role].pop("healthcheck")) == {"interval"}
        changed = drills[role].pop("environment").items() ^ users[role].pop("environment").items()
        assert {name for name, _ in changed} <= {"BATON_WORKER_TORCH_THREADS", "BATON_WORKER_MAX_NUM_SEQS"}
    assert drills == users
    assert {service["build"]["context"] for service in users.values() if "build" in service} == {str(ROOT)}
