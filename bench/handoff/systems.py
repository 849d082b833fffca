"""Baton and two stock vLLM servers: how each is started, asked for a prefill alone, and for a whole answer.

vLLM is asked as the small routers in its documentation do it, without the hop: the benchmark itself sends P the prompt,
and then D the same body with P's ``kv_transfer_params``. Prompts are token ids, so that D does not tokenize again.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from baton_serve.baton.cluster.cluster import Cluster
from baton_serve.baton.cluster.process import ROUTER, ProcessSpec, stopped
from baton_serve.baton.processes.vllm.connectors import STOCK
from baton_serve.baton.processes.vllm.program import find_vllm
from baton_serve.core.process.descendants import descendants_of
from bench.client import Client, Stream
from bench.cluster import totals
from bench.connector.pair import PairShape, pair
from bench.models.words import CONTEXT_TOKENS, NAME

MAX_NUM_SEQS = 16
BLOCK_SIZE = 16
#: P keeps the prompts of all rounds.
P_BLOCKS = 16384
#: Blocks of D beyond those of the largest burst, so few that a burst overwrites what D has read before.
SPARE_BLOCKS = 32
LEASE_DURATION_S = 6
#: vLLM spins while it waits, as it does where people run it; elsewhere its servers are made to sleep for a moment
#: (``baton/cluster/spinning.py``), which would be part of what is measured.
AWAKE = {"LD_PRELOAD": os.environ.get("LD_PRELOAD", "")}
D_HITS = "baton_worker_prefix_cache_hits_total"


class System:
    """A P and a D. ``first_of_d`` is the number of the first piece of text that D makes."""

    name: str
    first_of_d: int

    def __init__(self, p: str, pids: Sequence[int] = ()) -> None:
        """The URL of P. ``pids``: processes that compute, or spin, when nobody asks."""
        self._p = p
        self._pids = pids

    @contextmanager
    def resting(self) -> Iterator[None]:
        """It takes no core from the others."""
        with stopped(*self._pids):
            yield

    async def prefill(self, client: Client, prompt: list[int]) -> None:
        """Have P alone answer with one token. Raises AnswerError, as all do."""
        await client.ask(self._p, _body(prompt, 1))

    async def answer(self, client: Client, prompt: list[int], num_tokens: int) -> Stream:
        """A whole answer, of which D makes all tokens or all but the first."""
        raise NotImplementedError


class Baton(System):
    """P, D, router and Redis; and, behind another router, one worker that does both."""

    name = "Baton"
    first_of_d = 1

    def __init__(self, pair: Cluster, alone: Cluster) -> None:
        super().__init__(pair.processes["p"].url)
        self._pair, self._alone = pair, alone

    async def answer(self, client: Client, prompt: list[int], num_tokens: int) -> Stream:
        """Ask the router of P and D."""
        return await client.stream(self._pair.processes["router"].url, _body(prompt, num_tokens))

    async def num_found(self) -> float:
        """Prompt tokens that D has found in its own cache instead of reading them."""
        return (await totals(self._pair, "d"))[D_HITS]

    async def answer_alone(self, client: Client, prompt: list[int], num_tokens: int) -> Stream:
        """Ask the router of the worker that does both."""
        return await client.stream(self._alone.processes["router"].url, _body(prompt, num_tokens))


class Vllm(System):
    """Two servers with NixlConnector."""

    name = "vLLM"
    first_of_d = 0

    def __init__(self, p: str, d: str, pids: Sequence[int] = ()) -> None:
        super().__init__(p, pids)
        self._d = d

    async def answer(self, client: Client, prompt: list[int], num_tokens: int) -> Stream:
        """Ask P for one token, and then D for all."""
        asked_s = time.perf_counter()
        asked = _body(prompt, 1) | {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
        params = (await client.ask(self._p, asked))["kv_transfer_params"]
        body = _body(prompt, num_tokens) | {"kv_transfer_params": params}
        from_d = await client.stream(self._d, body)
        from_d.sent_s = asked_s  # the client has waited since P was asked
        return from_d


@contextmanager
def others_resting(systems: Sequence[System], one: System) -> Iterator[None]:
    """Only ``one`` of the systems runs."""
    with ExitStack() as stack:
        for each in systems:
            if each is not one:
                stack.enter_context(each.resting())
        yield


def _body(prompt: list[int], num_tokens: int) -> dict[str, Any]:
    return {"model": NAME, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}


@asynccontextmanager
async def baton(model: Path, folder: Path, largest_tokens: Sequence[int], device: str) -> AsyncIterator[Baton]:
    """Start it. ``largest_tokens``: of each sequence of the largest burst. Raises ChildDiedError."""
    d_blocks = sum(-(-num_tokens // BLOCK_SIZE) for num_tokens in largest_tokens) + SPARE_BLOCKS
    flags = {
        "model": model,
        "served-model-name": NAME,
        "device": device,
        "torch-threads": 1,
        "dtype": "float32",
        "block-size": BLOCK_SIZE,
        "max-num-seqs": MAX_NUM_SEQS,
    }
    router = ProcessSpec(ROUTER, {"port": 0, "log-level": "warning"})
    pair = {
        "p": ProcessSpec("prefill", {**flags, "num-blocks": P_BLOCKS}),
        "d": ProcessSpec("decode", {**flags, "num-blocks": d_blocks}),
        "router": router,
    }
    alone = {"both": ProcessSpec("both", {**flags, "num-blocks": d_blocks}), "router": router}
    for each in ("pair", "alone"):
        (folder / each).mkdir()
    async with Cluster(folder / "pair", pair) as first, Cluster(folder / "alone", alone) as second:
        _place(first, "p", "d")
        _place(second, "both")
        yield Baton(first, second)


@asynccontextmanager
async def vllm(given: str | None, model: Path, folder: Path) -> AsyncIterator[Vllm]:
    """Start both servers. Raises VllmError and ChildDiedError."""
    args = f"--max-model-len {CONTEXT_TOKENS} --max-num-seqs {MAX_NUM_SEQS}"
    d_args = "--no-enable-prefix-caching"
    shape = PairShape(
        STOCK, LEASE_DURATION_S, args, d_args=d_args, environ=AWAKE, model=model, name=NAME, cpu_cache_gib=2
    )
    async with pair(find_vllm(given), shape, folder) as both:
        yield Vllm(both.p, both.d, _place(both.cluster, "p", "d"))


def _place(cluster: Cluster, *names: str) -> list[int]:
    """Give the first of these workers half of the cores, and the second the others, as if each had a machine. Returns
    the ids of their processes.
    """
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    halves = [cores[:half] or cores, cores[half:]]
    found = []
    for name, mine in zip(names, halves, strict=False):
        pid = cluster.processes[name].pid
        for each in (pid, *descendants_of(pid)):
            found.append(each)
            for thread in Path(f"/proc/{each}/task").iterdir():
                os.sched_setaffinity(int(thread.name), mine)
    return found
