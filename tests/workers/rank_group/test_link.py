"""The rank as a process: start, steps, answers to reads, every kind of end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from baton_serve.core.process.frames import encode
from baton_serve.core.protocol.steps import (
    Connect,
    Connected,
    FromRank,
    NewSequence,
    Progress,
    RankFailed,
    RankReady,
    Read,
    Row,
    SamplingParams,
    Step,
    StepResult,
    TransferReport,
)
from baton_serve.workers.rank_group.launch import SPIN_COUNT, launch, run_to_completion
from baton_serve.workers.rank_group.link import RankLink
from baton_serve.workers.rank_protocol.errors import RankDeadError, RankStartError
from baton_serve.workers.rank_protocol.spec import RankSpec
from tests.kits.rank import group_driver
from tests.kits.rank.group_driver import ENVIRON, children, gone
from tests.kits.rank.models import Folders, References

ROOT = Path(__file__).parents[3]
STEP = Step(
    1, [(3, 7)], [], [NewSequence(1, [5, 6, 7], [], SamplingParams(temperature=0.0), [3])], [Row(1, 0, 3, [], True)]
)


def spec_of(folder: Path | str) -> RankSpec:
    return msgspec.structs.replace(group_driver.spec_of(folder, 1), num_blocks=8)


class Listener:
    """Keeps what a link reports."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[FromRank] = asyncio.Queue()
        self.progress: list[str] = []
        self.warnings: list[str] = []
        self.death: asyncio.Future[RankDeadError] = asyncio.get_running_loop().create_future()

    def on_event(self, event: FromRank) -> None:
        if isinstance(event, Progress):
            (self.warnings if event.is_warning else self.progress).append(event.text)
        else:
            self.events.put_nowait(event)

    async def start(self, spec: RankSpec, **environ: str) -> RankLink:
        return await RankLink.start(spec, self.on_event, self.death.set_result, environ={**ENVIRON, **environ})

    async def tokens(self, link: RankLink) -> list[int]:
        """The tokens of three steps, of which the last two are sent before the first has ended."""
        for step in (STEP, *(Step(n, [], [], [], [Row(1, n + 1, 1, [], True)]) for n in (2, 3))):
            link.send(step)
        results = [await self.events.get() for _ in range(3)]
        assert [result.step_id for result in results if isinstance(result, StepResult)] == [1, 2, 3]
        return [result.sampled[0].token for result in results if isinstance(result, StepResult)]


@pytest.mark.slow
async def test_steps_that_are_sent_ahead_continue_after_the_tokens_that_the_rank_samples(
    folder_of: Folders, reference_of: References
) -> None:
    listener = Listener()
    link = await listener.start(spec_of(folder_of("llama")))
    assert await listener.tokens(link) == reference_of("llama").generate([5, 6, 7], 3)
    await link.stop()


@pytest.mark.slow
async def test_a_rank_without_a_numba_that_works_warns_and_samples_the_same_tokens(
    folder_of: Folders, reference_of: References, tmp_path: Path
) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('not for this machine')\n")
    listener = Listener()
    link = await listener.start(spec_of(folder_of("llama")), PYTHONPATH=str(tmp_path))
    assert listener.warnings == [
        "this rank computes more slowly than it could, because Numba does not compile (ImportError)"
    ]
    assert await listener.tokens(link) == reference_of("llama").generate([5, 6, 7], 3)
    await link.stop()


@pytest.mark.slow
async def test_a_rank_serves_until_it_is_stopped(folder_of: Folders) -> None:
    listener = Listener()
    link = await listener.start(spec_of(folder_of("llama")))
    ready = link.ready
    assert (ready.rank, ready.num_blocks, ready.max_model_len, ready.vocab_size) == (0, 8, 4096, 384)
    assert ready.compatibility.layout == "block,kv_head,layer,kv,slot,head_dim"
    assert ready.metadata.engine_id == "e"
    assert ready.metadata.block_bytes == ready.block_bytes == 2 * 2 * 2 * 16 * 16 * 4
    assert any("KV cache" in line for line in listener.progress)

    link.send(STEP)
    result = await listener.events.get()
    assert isinstance(result, StepResult)
    assert [one.seq for one in result.sampled] == [1]

    link.send(Connect("e2", []))
    link.send(Read(5, "e2", "lease", [1], [2], 3, [(2, 9)]))
    answers = [await listener.events.get(), await listener.events.get()]
    assert isinstance(answers[0], Connected)
    assert answers[0].error
    assert isinstance(answers[1], TransferReport)
    assert [(read.read_id, read.outcome) for read in answers[1].received] == [(5, "failed")]

    await link.stop()
    await link.stop()
    assert gone(link.pid)
    assert not listener.death.done(), "a stopped rank did not die"


@pytest.mark.slow
async def test_nothing_in_the_current_directory_is_run(
    folder_of: Folders, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trap / "model").symlink_to(folder_of("llama"))
    monkeypatch.chdir(trap)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    link = await Listener().start(spec_of("model"))
    link.kill()
    await link.stop()
    assert not (trap / "SPRUNG").exists()


async def test_ucx_finds_no_settings_in_the_current_directory(trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trap)
    here, _ = await launched()
    assert here == Path("/")


async def test_what_the_hub_left_is_looked_for_where_the_worker_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    caches = ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "XDG_CACHE_HOME")
    _, told = await launched(**dict.fromkeys(caches, "kept/here"))
    assert told >= {f"{name}={tmp_path}/kept/here" for name in caches}


@pytest.mark.parametrize("said", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY", ""])
async def test_threads_that_wait_for_each_other_soon_sleep_unless_it_is_said(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    _, told = await launched(**({said: "7"} if said else {}))
    told = {each for each in told if each.startswith(("GOMP_SPINCOUNT=", "OMP_WAIT_POLICY="))}
    assert told == {f"{said}=7" if said else f"GOMP_SPINCOUNT={SPIN_COUNT}"}


async def launched(**environ: str) -> tuple[Path, set[str]]:
    """The current directory and the environment of a rank that was started."""
    process, (_, writer) = await launch(spec_of("/nowhere"), {**ENVIRON, **environ})
    writer.close()
    of_process = Path("/proc", str(process.pid))
    told = (of_process / "cwd").readlink(), set((of_process / "environ").read_text(errors="replace").split("\0"))
    process.kill()
    await process.wait()
    return told


@pytest.mark.slow
@pytest.mark.parametrize("how", ["step", "kill"])
async def test_a_rank_that_dies_is_noticed(how: str, folder_of: Folders) -> None:
    listener = Listener()
    link = await listener.start(spec_of(folder_of("llama")))
    if how == "step":
        link.send(Step(1, [], [], [], [Row(9, 0, 1, [], False)]))
    else:
        os.kill(link.pid, signal.SIGKILL)
    error = await listener.death
    assert (
        str(error)
        == {"step": "a row for the unknown sequence 9", "kill": "the rank process was killed by signal 9"}[how]
    )
    link.send(STEP)
    await link.stop()
    assert gone(link.pid)


@pytest.mark.slow
async def test_a_missing_model_is_one_line() -> None:
    listener = Listener()
    with pytest.raises(RankStartError, match=r"^no model in /nowhere/at/all: no such folder$"):
        await listener.start(spec_of("/nowhere/at/all"))
    assert not listener.death.done()


@pytest.mark.slow
async def test_a_start_that_is_cancelled_leaves_no_process(folder_of: Folders) -> None:
    listener = Listener()
    loading = asyncio.Event()
    before = children()
    pids: list[int] = []

    def on_event(event: FromRank) -> None:
        pids.extend(children() - before)
        loading.set()

    start = asyncio.create_task(
        RankLink.start(spec_of(folder_of("llama")), on_event, listener.death.set_result, environ=ENVIRON)
    )
    await loading.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert pids
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
def test_a_rank_leaves_when_the_other_end_closes(folder_of: Folders) -> None:
    process, ours = spawn(spec_of(folder_of("llama")))
    with ours:
        while not isinstance(receive(ours), RankReady):
            pass
    assert process.wait() == 0


@pytest.mark.slow
def test_a_rank_that_still_loads_leaves_too(folder_of: Folders) -> None:
    process, ours = spawn(spec_of(folder_of("llama")))
    ours.close()
    assert process.wait() == 0


@pytest.mark.slow
def test_a_rank_ends_at_once_with_all_that_it_said() -> None:
    lines = (
        "import atexit, sys",
        "from baton_serve.workers.rank import process",
        "atexit.register(print, 'long after')",
        "print('said', end='')",
        "print('complained', end='', file=sys.stderr)",
        "process.exit_now(3)",
    )
    done = subprocess.run([sys.executable, "-c", "; ".join(lines)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "said")
    assert done.stderr.endswith("complained")


def test_the_link_needs_no_torch() -> None:
    heavy = {"torch", "transformers", "numpy", "nixl"}
    code = f"import sys, baton_serve.workers.rank_group.group; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("data", [struct.pack("<I", 1) + b"\xc1", encode(Progress("a message for the other side"))])
def test_a_rank_says_that_a_message_is_not_one_of_ours(data: bytes, folder_of: Folders) -> None:
    process, ours = spawn(spec_of(folder_of("llama")))
    with ours:
        while not isinstance(receive(ours), RankReady):
            pass
        ours.sendall(data)
        assert isinstance(receive(ours), RankFailed)
        process.wait()


def spawn(spec: RankSpec) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        arguments = [str(theirs.fileno()), str(os.getpid()), msgspec.json.encode(spec).decode()]
        process = subprocess.Popen(
            [sys.executable, "-m", "baton_serve.workers.rank.main", *arguments],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, **ENVIRON},
        )
    return process, ours


def receive(sock: socket.socket) -> FromRank:
    (length,) = struct.unpack("<I", sock.recv(4, socket.MSG_WAITALL))
    return msgspec.msgpack.decode(sock.recv(length, socket.MSG_WAITALL), type=FromRank)


async def test_what_must_end_ends_before_the_cancellation_does() -> None:
    go, done = asyncio.Event(), []

    async def work() -> None:
        await go.wait()
        done.append(True)

    task = asyncio.create_task(run_to_completion(work()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done


async def test_an_error_in_it_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run_to_completion(work())
