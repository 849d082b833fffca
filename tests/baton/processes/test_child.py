"""One child: what its status lines, its log and its end are turned into."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from baton_serve.baton.processes.child import Child, ChildDiedError, ChildSpec, last_line
from baton_serve.baton.processes.supervisor import StopRequests, Supervisor
from baton_serve.core.protocol.status import Progress, Ready, Status
from tests.kits.baton.up_process import wait_for_end

READY = """say('{"event": "ready", "url": "http://somewhere"}')"""
HEADER = """
import os, signal, subprocess, sys, time
def say(text, end="\\n"):
    os.write(int(sys.argv[-1]), (text + end).encode())
def wait():
    signal.pause()
"""


@pytest.fixture
def statuses() -> list[tuple[str, Status]]:
    return []


@pytest.fixture
def make_child(tmp_path: Path, statuses: list[tuple[str, Status]]) -> Callable[[str], Child]:
    """A child that runs a Python program."""

    def make(program: str) -> Child:
        spec = ChildSpec("it", (sys.executable, "-c", HEADER + program), dict(os.environ))
        return Child(spec, tmp_path / "it.log", lambda name, status: statuses.append((name, status)))

    return make


async def test_progress_then_ready_then_stop(
    make_child: Callable[[str], Child], statuses: list[tuple[str, Status]]
) -> None:
    child = make_child(f"""say('{{"event": "progress", "text": "half"}}'); {READY}; wait()""")
    await child.start()
    ready = await child.ready()
    assert ready == Ready("http://somewhere")
    assert statuses == [("it", Progress("half")), ("it", ready)]
    await child.stop(timeout_s=30)
    assert await child.ended() == "it: was ended by SIGTERM"
    await child.stop(timeout_s=30)


async def test_the_log_of_one_that_ended_well_says_no_reason(make_child: Callable[[str], Child]) -> None:
    child = make_child("""print("all is well")""")
    await child.start()
    assert await child.ended() == "it: ended with exit code 0"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("""say('{"event": "failed", "error": "no such thing"}'); wait()""", "it: no such thing"),
        ("""print("first"); print("last"); print(); sys.exit(3)""", "it: ended with exit code 3: last"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it: was ended by SIGKILL"),
        ("pass", "it: ended with exit code 0"),
        ("say('hello'); wait()", "it: wrote a status line that is none: b'hello\\n'"),
        ("say('x' * 300_000); wait()", "it: wrote an endless status line"),
        ("os.close(int(sys.argv[-1])); wait()", "it: stopped saying how far it is before it was ready"),
        ("""say('{"event": "failed", "error": "cut', end=''); sys.exit(1)""", "it: wrote a status line that is none"),
    ],
)
async def test_an_end_before_ready_has_a_reason(make_child: Callable[[str], Child], program: str, reason: str) -> None:
    child = make_child(program)
    await child.start()
    try:
        with pytest.raises(ChildDiedError) as error:
            await child.ready()
        assert str(error.value).startswith(reason)
        assert "\n" not in str(error.value)
    finally:
        await child.stop(timeout_s=0)


async def test_a_reason_after_ready_wins_over_the_exit_code(make_child: Callable[[str], Child]) -> None:
    child = make_child(f"""{READY}; say('{{"event": "failed", "error": "lost the GPU"}}'); sys.exit(1)""")
    await child.start()
    await child.ready()
    assert await child.ended() == "it: lost the GPU"
    await child.stop(timeout_s=30)


async def test_after_ready_a_child_need_not_say_anything(make_child: Callable[[str], Child]) -> None:
    child = make_child(f"{READY}; os.close(int(sys.argv[-1])); wait()")
    await child.start()
    await child.ready()
    await child.stop(timeout_s=30)
    assert await child.ended() == "it: was ended by SIGTERM"


async def test_a_status_that_cannot_be_shown_is_the_end_of_the_waiting(tmp_path: Path) -> None:
    def show(_: str, __: Status) -> None:
        raise RuntimeError("no screen")

    program = f"""{HEADER}say('{{"event": "progress", "text": "half"}}'); wait()"""
    child = Child(ChildSpec("it", (sys.executable, "-c", program), dict(os.environ)), tmp_path / "it.log", show)
    await child.start()
    try:
        with pytest.raises(
            ChildDiedError, match=r"^it: what it said could not be handled: RuntimeError\('no screen'\)$"
        ):
            await child.ready()
    finally:
        await child.stop(timeout_s=30)


async def test_a_child_that_cannot_be_stopped_does_not_keep_the_others_running(
    make_child: Callable[[str], Child],
) -> None:
    class Stubborn(Child):
        async def stop(self, timeout_s: float) -> None:
            await super().stop(timeout_s)
            raise RuntimeError("stubborn")

    last = make_child(f"{READY}; wait()")
    first = Stubborn(last._spec, last.log_path, lambda *_: None)
    supervisor = Supervisor([[first], [last]], StopRequests())
    await supervisor.start()
    with pytest.raises(RuntimeError, match="stubborn"):
        await supervisor.stop(timeout_s=30)
    assert await last.ended() == "it: was ended by SIGTERM"


async def test_what_a_child_started_goes_with_it(make_child: Callable[[str], Child]) -> None:
    child = make_child(
        """
helper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
say('{"event": "ready", "url": "%d"}' % helper.pid); wait()
"""
    )
    await child.start()
    helper = int((await child.ready()).url)
    await child.stop(timeout_s=30)
    wait_for_end([helper])


async def test_nothing_to_run(tmp_path: Path) -> None:
    child = Child(ChildSpec("it", ("/nowhere/program",), {}), tmp_path / "log", lambda *_: None)
    with pytest.raises(ChildDiedError, match=r"^it: cannot run /nowhere/program: No such file or directory$"):
        await child.start()
    await child.stop(timeout_s=0)


def test_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"")
    assert last_line(log) == ""
    log.write_bytes(b"x" * 100_000 + b"\n one \xff\n\n")
    assert last_line(log) == "one \N{REPLACEMENT CHARACTER}"
