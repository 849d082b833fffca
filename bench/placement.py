"""``python -m bench.placement``: a table of the router's policies on simulated workers with one generated workload.

No time passes: events come from a heap. The policies are real, the workers are not. What a token costs is assumed
(``Costs``), so rows can be compared with each other and not with a real machine.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from statistics import quantiles
from typing import TYPE_CHECKING

from core.protocol.worker import Role, WorkerLoad
from router.placement import DECODE_POLICIES, PREFILL_POLICIES, Prefilled, Prompt, available
from router.placement.chunks import NUM_BYTES, SIZES
from router.placement.prompt import BYTES_PER_TOKEN
from router.placement.two_choices import TwoChoices
from router.pool import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from router.placement import OnGone, PickDecode, PickPrefill

BLOCK_SIZE = 16
REPORT_INTERVAL_S = 0.25
PAIRS = [
    ("round_robin", "round_robin"),
    ("two_choices", "two_choices"),
    ("least_loaded", "least_loaded"),
    ("prefix", "least_loaded"),
    ("prefix", "affinity"),
    ("least_loaded", "affinity"),
]


@dataclass(frozen=True)
class Costs:
    """Assumed costs: of the order of a model of 8 billion parameters on one large GPU, with blocks read at 10 GB/s."""

    prefill_s: float = 0.01
    prefill_token_s: float = 1 / 10_000
    read_s: float = 0.002
    read_token_s: float = 131_072 / 10e9
    step_s: float = 0.010
    step_sequence_s: float = 0.00015


@dataclass(eq=False)
class Turn:
    """One request. ``then`` is the next one of its conversation, ``think_s`` after this one's end."""

    text: bytes
    num_new: int
    think_s: float
    then: Turn | None = None
    came_s: float = 0.0
    cached: int = 0
    prompt: Prompt = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = Prompt("m", len(self.text), lambda: self.text)

    @property
    def num_tokens(self) -> int:
        return len(self.text) // BYTES_PER_TOKEN


def conversations(rng: random.Random, num: int, rate: float) -> Iterator[tuple[float, Turn]]:
    """When each conversation begins, and its first turn. In two of every ten seconds the rate is four times as high."""
    systems = [rng.randbytes(rng.randint(1, 16) * 1024) for _ in range(12)]
    now_s = 0.0
    for _ in range(num):
        now_s += rng.expovariate(rate * (4 if now_s % 10 < 2 else 1))
        text = systems[min(int(rng.paretovariate(1)) - 1, len(systems) - 1)]
        turns = []
        for _ in range(rng.randint(1, 6)):
            text += rng.randbytes(int(rng.lognormvariate(7, 1)))
            turns.append(Turn(text, rng.randint(30, 400), rng.expovariate(1 / 4)))
            text += rng.randbytes(turns[-1].num_new * BYTES_PER_TOKEN)
        for turn, following in itertools.pairwise(turns):
            turn.then = following
        yield now_s, turns[0]


class Cache:
    """What a simulated worker has cached, in chunks of prompts; the least recently used are evicted first."""

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._sizes: OrderedDict[int, int] = OrderedDict()

    def take(self, chunks: Sequence[int]) -> int:
        """Add a prompt; returns how many of its chunks, from the first on, were cached before."""
        found = next((i for i, chunk in enumerate(chunks) if chunk not in self._sizes), len(chunks))
        for chunk, size in reversed(list(zip(chunks, SIZES, strict=False))):  # the end of a prompt is evicted first
            self._room -= 0 if chunk in self._sizes else size
            self._sizes[chunk] = size
            self._sizes.move_to_end(chunk)
        while self._room < 0:
            self._room += self._sizes.popitem(last=False)[1]
        return found


class Simulation:
    """Workers, queues and the clock."""

    def __init__(self, costs: Costs, prefill: PickPrefill, decode: PickDecode, num_workers: int) -> None:
        self.costs, self.pick_prefill, self.pick_decode = costs, prefill, decode
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self.p = [_worker(f"p{i}", Role.PREFILL, 16, 24_000) for i in range(num_workers)]
        self.d = [_worker(f"d{i}", Role.DECODE, 64, 12_000) for i in range(num_workers)]
        #: What is in the caches of the simulated workers, in chunks of the prompts. Policies do not see it.
        self.cache = {worker: Cache(worker.num_blocks * BLOCK_SIZE * BYTES_PER_TOKEN) for worker in (*self.p, *self.d)}
        self.free_at_s = dict.fromkeys(self.p, 0.0)
        self.used_blocks = dict.fromkeys(self.d, 0)
        self.to_prefill: deque[Turn] = deque()
        self.to_decode: deque[tuple[Turn, Worker]] = deque()
        self.in_d: dict[Worker, deque[Turn]] = {worker: deque() for worker in self.d}
        self.ttft_s: list[float] = []
        self.second_s: list[float] = []
        self.hits = {Role.PREFILL: 0, Role.DECODE: 0}
        self.num_tokens = self.num_done = 0

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._number), what))

    def run(self) -> None:
        self._report()
        while self._events:
            self.now_s, _, what = heapq.heappop(self._events)
            what()

    def _report(self) -> None:
        for worker in self.d:
            worker.report(WorkerLoad(free_blocks=worker.num_blocks - self.used_blocks[worker]), self.now_s)
        if self._events or self.now_s == 0:
            self.at(self.now_s + REPORT_INTERVAL_S, self._report)

    def come(self, turn: Turn) -> None:
        turn.came_s = self.now_s
        self.to_prefill.append(turn)
        self._place()

    def _place(self) -> None:
        while self.to_prefill and (workers := available(self.p, frozenset())):
            self._prefill(self.to_prefill.popleft(), workers)
        while self.to_decode and (workers := available(self.d, frozenset())):
            turn, source = self.to_decode.popleft()
            worker = self.pick_decode.pick(workers, Prefilled(turn.prompt, source, turn.num_tokens))
            worker.in_flight += 1
            self.in_d[worker].append(turn)
            self._admit(worker)

    def _prefill(self, turn: Turn, workers: list[Worker]) -> None:
        worker = self.pick_prefill.pick(workers, turn.prompt)
        worker.in_flight += 1
        start_s = max(self.now_s, self.free_at_s[worker])
        found = min(self._found(worker, turn), turn.num_tokens - 1)
        self.hits[Role.PREFILL] += found
        self.num_tokens += turn.num_tokens
        end_s = start_s + self.costs.prefill_s + (turn.num_tokens - found) * self.costs.prefill_token_s
        self.free_at_s[worker] = end_s

        def done() -> None:
            worker.in_flight -= 1
            self.ttft_s.append(self.now_s - turn.came_s)
            self.to_decode.append((turn, worker))
            self._place()

        self.at(end_s, done)

    def _found(self, worker: Worker, turn: Turn) -> int:
        """How many tokens of the prompt are cached.

        Afterwards all are: P works in order, so queued prompts count too.
        """
        return NUM_BYTES[self.cache[worker].take(turn.prompt.chunks)] // BYTES_PER_TOKEN

    def _admit(self, worker: Worker) -> None:
        waiting = self.in_d[worker]
        while waiting:
            turn = waiting[0]
            blocks = (turn.num_tokens + turn.num_new) // BLOCK_SIZE + 1
            if self.used_blocks[worker] + blocks > worker.num_blocks and self.used_blocks[worker]:
                return
            waiting.popleft()
            self.used_blocks[worker] += blocks
            self._decode(worker, turn, blocks)

    def _decode(self, worker: Worker, turn: Turn, blocks: int) -> None:
        found = min(self._found(worker, turn), turn.num_tokens)
        self.hits[Role.DECODE] += found
        step_s = self.costs.step_s + self.costs.step_sequence_s * worker.in_flight
        first_s = self.now_s + self.costs.read_s + (turn.num_tokens - found) * self.costs.read_token_s + step_s
        self.second_s.append(first_s - turn.came_s)

        def done() -> None:
            worker.in_flight -= 1
            self.used_blocks[worker] -= blocks
            self.num_done += 1
            if turn.then is not None:
                following = turn.then
                self.at(self.now_s + turn.think_s, lambda: self.come(following))
            self._admit(worker)
            self._place()

        self.at(first_s + turn.num_new * step_s, done)


def _worker(name: str, role: Role, limit: int, num_blocks: int) -> Worker:
    return Worker(
        worker_id=name, url="", role=role, limit=limit, engine_id=name, num_blocks=num_blocks, block_size=BLOCK_SIZE
    )


def simulate(prefill: str, decode: str, *, num: int, rate: float, num_workers: int, seed: int) -> str:
    """One row of the table."""
    on_gone: OnGone = []
    rng = random.Random(seed)
    p = TwoChoices(rng) if prefill == "two_choices" else PREFILL_POLICIES[prefill](on_gone)
    d = TwoChoices(rng) if decode == "two_choices" else DECODE_POLICIES[decode](on_gone)
    simulation = Simulation(Costs(), p, d, num_workers)
    for when_s, turn in conversations(random.Random(seed), num, rate):
        simulation.at(when_s, lambda turn=turn: simulation.come(turn))  # type: ignore[misc]
    simulation.run()
    ttft, second = quantiles(simulation.ttft_s, n=100), quantiles(simulation.second_s, n=100)
    hits = [simulation.hits[role] / simulation.num_tokens for role in (Role.PREFILL, Role.DECODE)]
    return (
        f"| {prefill} | {decode} | {ttft[49] * 1e3:.0f} | {ttft[98] * 1e3:.0f} | {second[98] * 1e3:.0f} "
        f"| {hits[0]:.0%} | {hits[1]:.0%} | {simulation.num_done / simulation.now_s:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.placement", description=__doc__)
    parser.add_argument("--conversations", type=int, default=1500, help="default %(default)s")
    parser.add_argument(
        "--rate", type=float, default=5.0, help="new ones a second between bursts (default %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=4, help="of each kind (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the workload (default %(default)s)")
    given = parser.parse_args()
    print("| prefill | decode | TTFT p50 ms | TTFT p99 ms | second token p99 ms | hits P | hits D | requests/s |")
    print("|---|---|---|---|---|---|---|---|")
    for prefill, decode in PAIRS:
        row = simulate(
            prefill, decode, num=given.conversations, rate=given.rate, num_workers=given.workers, seed=given.seed
        )
        print(row, flush=True)


if __name__ == "__main__":
    main()
