"""One P and one D, asked without a router: a hand-off, and the answer that D makes of it."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from baton_serve.baton.cluster.cluster import POLL_S, Cluster
from baton_serve.baton.cluster.process import VllmSpec, stopped
from baton_serve.baton.demo import MODEL_DIR, MODEL_NAME
from baton_serve.baton.processes.vllm.connectors import BATON, Connector
from baton_serve.baton.processes.vllm.extra_args import ExtraArgs
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.processes.vllm.program import VllmProgram
from baton_serve.baton.processes.vllm.server import ServerPlace, ServerShare, VllmModel
from baton_serve.core.protocol.handoff import ASK_PREFILL
from bench.client import Client
from bench.cluster import totals

BLOCK_SIZE = 32
#: Longest wait for an answer, seconds: D may stand still while it is waited for.
ANSWER_TIMEOUT_S = 600.0
USAGE = "vllm:kv_cache_usage_perc"
CHECKS = "vllm:baton_fence_checks_total"
_SENTENCE = "Baton keeps the blocks of a prompt until another worker has read them, and then it frees them at once. "
#: Two computations of the same token may differ by so much, in units of its logprob: they batch differently.
LOGPROB_TOLERANCE = 1e-3


#: A text, or the ids of its tokens.
Prompt: TypeAlias = str | list[int]


@dataclass(frozen=True)
class PairShape:
    """How both servers are started. ``p_args`` and ``d_args``: what each is given beside ``args``."""

    connector: Connector = BATON
    lease_duration_s: int = 30
    args: str = f"--max-model-len 1024 --max-num-seqs 16 --block-size {BLOCK_SIZE}"
    p_args: str = ""
    d_args: str = ""
    p_tp: int = 1
    d_tp: int = 1
    #: None: that of P.
    d_connector: Connector | None = None
    #: Whether both announce themselves in the Redis of the cluster.
    announces: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    model: Path = MODEL_DIR
    name: str = MODEL_NAME
    cpu_cache_gib: int = 1


@dataclass(frozen=True)
class Answer:
    """What a client sees of an answer, with the logprobs of its tokens."""

    text: str
    logprobs: tuple[float, ...]

    def is_like(self, other: Answer) -> bool:
        """Whether both were computed from the same prompt."""
        pairs = zip(self.logprobs, other.logprobs, strict=True)
        return self.text == other.text and all(abs(one - two) <= LOGPROB_TOLERANCE for one, two in pairs)


class Pair:
    """The two servers, which serve."""

    def __init__(self, cluster: Cluster, client: Client, p: ServerPlace, d: ServerPlace) -> None:
        self.cluster = cluster
        self._client = client
        self.p_place, self.d_place = p, d
        #: The base URLs.
        self.p, self.d = p.url, d.url

    async def prefill(self, prompt: Prompt) -> dict[str, Any]:
        """The parameters of a hand-off."""
        got = await self._post(self.p, prompt, kv_transfer_params=ASK_PREFILL, max_tokens=1)
        params = got["kv_transfer_params"]
        assert isinstance(params, dict)
        return params

    async def ask(self, url: str, prompt: Prompt, params: Mapping[str, Any] | None = None, **more: Any) -> Answer:
        """The greedy answer of one server; ``params``: of the hand-off that it reads."""
        more |= {} if params is None else {"kv_transfer_params": params}
        choice = (await self._post(url, prompt, logprobs=0, **more))["choices"][0]
        return Answer(choice["text"], tuple(choice["logprobs"]["token_logprobs"]))

    async def hand_off(self, prompt: Prompt, **more: Any) -> Answer:
        """D's answer, with the blocks of P."""
        return await self.ask(self.d, prompt, await self.prefill(prompt), **more)

    def d_stopped(self) -> AbstractContextManager[Callable[[], None]]:
        """D's engine stands still inside, or until the function is called; its HTTP port goes on to take requests."""
        return stopped(*self.cluster.ranks("d"))

    async def until_p_is_free(self) -> None:
        """Wait until P has all its blocks. vLLM tells nobody."""
        while True:
            if not await self.metric("p", USAGE):
                return
            await asyncio.sleep(POLL_S)

    async def metric(self, name: str, metric: str) -> float:
        """The sum of a metric's samples at ``p`` or ``d``; 0 where there is none."""
        return (await totals(self.cluster, name)).get(metric, 0.0)

    async def checks(self) -> Counter[str]:
        """How many checks of D's fence had which verdict; each rank checks for itself."""
        samples = await self.cluster.metrics("d")
        return Counter({one.labels["verdict"]: int(one.value) for one in samples if one.name == CHECKS})

    async def _post(self, url: str, prompt: Prompt, *, max_tokens: int = 16, **more: Any) -> dict[str, Any]:
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        return await self._client.ask(url, {**body, **more})


def prompts(num_sentences: int) -> Iterator[str]:
    """Prompts without end, no two of which begin alike."""
    for number in itertools.count():
        yield f"{number} times {number * 7919 % 997}: {_SENTENCE * num_sentences}"


def num_wrong(answers: Sequence[Answer], right: Sequence[Answer]) -> int:
    """How many answers are not like the right one."""
    return sum(not one.is_like(other) for one, other in zip(answers, right, strict=True))


@asynccontextmanager
async def pair(program: VllmProgram, shape: PairShape, folder: Path) -> AsyncIterator[Pair]:
    """Start both servers. Their logs are in ``folder``. Raises VllmError and ChildDiedError."""
    program.check_connector(shape.connector)
    with HeldPorts() as ports:
        p, d = (
            VllmSpec(
                role,
                program,
                VllmModel(
                    str(shape.model),
                    shape.lease_duration_s,
                    shape.name,
                    ExtraArgs(f"{shape.args} {more}"),
                    connector,
                    shape.announces,
                ),
                ServerPlace(ports.take(), ports.take(), ports.take()),
                ServerShare(tp=tp, threads=1, cpu_cache_gib=shape.cpu_cache_gib, environ=shape.environ),
            )
            for role, more, tp, connector in (
                ("prefill", shape.p_args, shape.p_tp, shape.connector),
                ("decode", shape.d_args, shape.d_tp, shape.d_connector or shape.connector),
            )
        )
        async with (
            Cluster(folder, {"p": p, "d": d}) as cluster,
            Client(ANSWER_TIMEOUT_S) as client,
        ):
            yield Pair(cluster, client, p.place, d.place)
