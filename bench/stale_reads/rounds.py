"""One P with few blocks and one D. In each round D is held up until other prompts have the blocks that it will read."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from baton.cluster.cluster import POLL_S, Cluster
from baton.cluster.process import VllmSpec, stopped
from baton.demo import MODEL_DIR, MODEL_NAME
from baton.processes.vllm.extra_args import ExtraArgs
from baton.processes.vllm.held_ports import HeldPorts
from baton.processes.vllm.server import ServerPlace, ServerShare, VllmModel
from core.protocol.handoff import ASK_PREFILL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from baton.processes.vllm.connectors import Connector
    from baton.processes.vllm.program import VllmProgram

LEASE_DURATION_S = 6
NUM_BLOCKS = 40
BLOCK_SIZE = 32
#: Hand-offs of one round: together their prompts, of four blocks each, take nearly all blocks of P.
NUM_AT_ONCE = 8
NUM_TOKENS = 16
PATH = "/v1/completions"
#: Without prefix caching, so that D reads all blocks and P writes all of them.
ARGS = f"--max-model-len 1024 --max-num-seqs 16 --block-size {BLOCK_SIZE} --no-enable-prefix-caching"
USAGE = "vllm:kv_cache_usage_perc"
CHECKS = "vllm:baton_fence_checks_total"
_WORDS = "Baton keeps the blocks of a prompt until another worker has read them, and then it frees them at once. "
#: Two computations of the same token may differ by so much, in units of its logprob: they batch differently.
LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Answer:
    """What a client sees of an answer, with the logprobs of its tokens."""

    text: str
    logprobs: tuple[float, ...]

    def is_like(self, other: Answer) -> bool:
        """Whether both were computed from the same prompt."""
        pairs = zip(self.logprobs, other.logprobs, strict=True)
        return self.text == other.text and all(abs(one - two) <= LOGPROB_TOLERANCE for one, two in pairs)


@dataclass
class Result:
    """What became of the hand-offs with one connector."""

    num_late: int = 0
    num_late_wrong: int = 0
    num_on_time: int = 0
    num_on_time_wrong: int = 0
    #: The fence's verdicts on each, by name.
    late_checks: Counter[str] = field(default_factory=Counter)
    on_time_checks: Counter[str] = field(default_factory=Counter)


class StaleReads:
    """The two servers, which serve."""

    def __init__(self, cluster: Cluster, http: httpx.AsyncClient, p: str, d: str) -> None:
        self._cluster = cluster
        self._http = http
        self._p, self._d = p, d
        self._num_asked = 0

    async def run(self, rounds: int) -> Result:
        """Each round has ``NUM_AT_ONCE`` hand-offs that D reads too late, and as many that it reads at once."""
        result = Result()
        for _ in range(rounds):
            before = await self._checks()
            result.num_late_wrong += await self._late()
            between = await self._checks()
            result.num_on_time_wrong += await self._on_time()
            result.late_checks.update(between - before)
            result.on_time_checks.update(await self._checks() - between)
            result.num_late += NUM_AT_ONCE
            result.num_on_time += NUM_AT_ONCE
        return result

    async def _late(self) -> int:
        prompts = self._prompts()
        right = [await self._ask(self._d, prompt) for prompt in prompts]
        handed_off = await asyncio.gather(*map(self._prefill, prompts))
        with stopped(*self._cluster.ranks("d")) as go_on:
            async with asyncio.TaskGroup() as group:
                pairs = zip(prompts, handed_off, strict=True)
                asked = [group.create_task(self._ask(self._d, *pair)) for pair in pairs]
                await self._until_expired()
                await asyncio.gather(*(self._ask(self._p, prompt, max_tokens=1) for prompt in self._prompts()))
                go_on()
        return _num_wrong([one.result() for one in asked], right)

    async def _on_time(self) -> int:
        prompts = self._prompts()
        right = [await self._ask(self._d, prompt) for prompt in prompts]
        handed_off = await asyncio.gather(*map(self._prefill, prompts))
        pairs = zip(prompts, handed_off, strict=True)
        return _num_wrong(await asyncio.gather(*(self._ask(self._d, *pair) for pair in pairs)), right)

    def _prompts(self) -> list[str]:
        """New ones, no two of which begin alike."""
        first = self._num_asked
        self._num_asked += NUM_AT_ONCE
        return [f"{number} times {number * 7919 % 997}: {_WORDS * 3}" for number in range(first, self._num_asked)]

    async def _prefill(self, prompt: str) -> dict[str, Any]:
        """The parameters of a hand-off."""
        got = await self._post(self._p, prompt, kv_transfer_params=ASK_PREFILL, max_tokens=1)
        params = got["kv_transfer_params"]
        assert isinstance(params, dict)
        return params

    async def _ask(self, url: str, prompt: str, params: Mapping[str, Any] | None = None, **more: Any) -> Answer:
        more |= {} if params is None else {"kv_transfer_params": params}
        choice = (await self._post(url, prompt, logprobs=0, **more))["choices"][0]
        return Answer(choice["text"], tuple(choice["logprobs"]["token_logprobs"]))

    async def _post(self, url: str, prompt: str, **more: Any) -> dict[str, Any]:
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        answer: dict[str, Any] = (await self._http.post(url + PATH, json={**body, **more})).raise_for_status().json()
        return answer

    async def _until_expired(self) -> None:
        """Wait until P has all its blocks. vLLM tells nobody."""
        while True:
            if all(one.value == 0 for one in await self._cluster.metrics("p") if one.name == USAGE):
                return
            await asyncio.sleep(POLL_S)

    async def _checks(self) -> Counter[str]:
        samples = await self._cluster.metrics("d")
        return Counter({one.labels["verdict"]: int(one.value) for one in samples if one.name == CHECKS})


@asynccontextmanager
async def stale_reads(program: VllmProgram, connector: Connector, folder: Path) -> AsyncIterator[StaleReads]:
    """Start both servers. Their logs are in ``folder``. Raises VllmError and ChildDiedError."""
    program.check_connector(connector)
    with HeldPorts() as ports:
        places = {name: ServerPlace(ports.take(), ports.take()) for name in ("p", "d")}
        roles = {"p": ("prefill", f"{ARGS} --num-gpu-blocks-override {NUM_BLOCKS}"), "d": ("decode", ARGS)}
        specs = {
            name: VllmSpec(
                role,
                program,
                VllmModel(str(MODEL_DIR), LEASE_DURATION_S, MODEL_NAME, ExtraArgs(args), connector),
                places[name],
                ServerShare(threads=1),
            )
            for name, (role, args) in roles.items()
        }
        async with Cluster(folder, specs) as cluster, httpx.AsyncClient(timeout=None, trust_env=False) as http:
            yield StaleReads(cluster, http, places["p"].url, places["d"].url)


def _num_wrong(answers: Sequence[Answer], right: Sequence[Answer]) -> int:
    return sum(not one.is_like(other) for one, other in zip(answers, right, strict=True))
