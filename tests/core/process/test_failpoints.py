"""Failpoints: what the variable may say, that nonsense is refused, and that table and code name the same lines."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from baton_serve.baton.config.configuration import ConfigurationError, Document, load
from baton_serve.core.process.failpoints import FAILPOINTS, VARIABLE, FailpointError, parse
from baton_serve.router.settings import RouterSettings

ROOT = Path(__file__).parents[3]
NAME = "router.exit"


def hit_in_a_child(value: str, num_hits: int) -> subprocess.CompletedProcess[str]:
    """A process that is armed with ``value`` and comes by so many times, saying each time that it is still there."""
    program = (
        "import os; from baton_serve.core.process import failpoints; failpoints.arm(os.environ)\n"
        f"for n in range({num_hits}): failpoints.hit({NAME!r}); print(n, flush=True)"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, env={VARIABLE: value}, capture_output=True, text=True, check=False)


def test_the_variable_says_what_each_failpoint_does() -> None:
    assert parse("") == {}
    found = parse(f"{NAME}=kill, worker.grant.before=sleep:250@3,rank.read.before=stop")
    assert {name: repr(armed) for name, armed in found.items()} == {
        NAME: "kill",
        "worker.grant.before": "sleep:250@3",
        "rank.read.before": "stop",
    }


@pytest.mark.parametrize(
    "text",
    [
        "nowhere=kill",
        NAME,
        *(
            f"{NAME}={what}"
            for what in (
                *("", "die", "kill@0", "kill@", "kill@x", "kill@@1", "kill@" + "9" * 400),
                *("kill:5", "kill:", "kill:abc", "stop:x", "stop:", "kill:@1", "kill:1@1"),
                *("sleep", "sleep:", "sleep:x", "sleep:-1", "sleep:1.5", "sleep:1:2", "sleep:\u0661"),
                *("sleep:" + "9" * 400, "sleep:1e9", "sleep:inf"),
            )
        ),
    ],
)
def test_nonsense_is_refused_before_a_process_starts(text: str) -> None:
    with pytest.raises(FailpointError):
        parse(text)
    with pytest.raises(ConfigurationError, match=VARIABLE):
        load(RouterSettings, {}, {VARIABLE: text}, Document())


def test_the_variable_is_known_to_every_process() -> None:
    assert load(RouterSettings, {}, {VARIABLE: f"{NAME}=kill"}, Document()) == RouterSettings()


def test_an_armed_failpoint_kills_at_the_chosen_time() -> None:
    done = hit_in_a_child(f"{NAME}=kill@3", 5)
    assert (done.returncode, done.stdout.split()) == (-signal.SIGKILL, ["0", "1"])


def test_unarmed_and_delayed_processes_go_on() -> None:
    assert hit_in_a_child("", 3).stdout.split() == ["0", "1", "2"]
    assert hit_in_a_child("worker.grant.before=kill", 3).stdout.split() == ["0", "1", "2"]
    assert hit_in_a_child(f"{NAME}=sleep:1", 3).stdout.split() == ["0", "1", "2"]


def test_the_table_names_every_line_that_there_is_once() -> None:
    sources = [path.read_text() for folder in ("router", "workers") for path in (ROOT / folder).rglob("*.py")]
    assert sorted(name for text in sources for name in re.findall(r'\bhit\("([^"]+)"\)', text)) == sorted(FAILPOINTS)
