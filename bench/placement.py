"""``python -m bench.placement``: a table of the router's policies on simulated workers.

The workload is generated, or read from a ``--trace`` (``bench.scale.load.trace`` has the format). No time passes:
events come from a heap. The policies are real, the workers are not. What a token costs is assumed (``Costs``), so rows
can be compared with each other and not with a real machine.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
from collections import OrderedDict, deque
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from baton_serve.core.protocol.worker import Role, WorkerLoad
from baton_serve.router.placement import DECODE_POLICIES, PREFILL_POLICIES, Prefilled, Prompt, available
from baton_serve.router.placement.chunks import NUM_BYTES, SIZES
from baton_serve.router.placement.prompt import BYTES_PER_TOKEN
from baton_serve.router.placement.two_choices import TwoChoices
from baton_serve.router.pool import Worker
from baton_serve.router.pool.usage import Usage
from bench.performance.page import markdown_table
from bench.report.arguments import above_zero, at_least, new_file
from bench.report.model import Line, Plot, Report, Table
from bench.report.spread import spread
from bench.scale.load.trace import BadTrace, read_trace, stretched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from baton_serve.router.placement import OnGone, PickDecode, PickPrefill
    from bench.scale.load.job import Job

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

    prompt: Prompt
    num_new: int
    think_s: float = 0.0
    then: Turn | None = None
    came_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return self.prompt.num_tokens


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
            prompt = Prompt("m", len(text), lambda text=text: text)  # type: ignore[misc]
            turns.append(Turn(prompt, rng.randint(30, 400), rng.expovariate(1 / 4)))
            text += rng.randbytes(turns[-1].num_new * BYTES_PER_TOKEN)
        for turn, following in itertools.pairwise(turns):
            turn.then = following
        yield now_s, turns[0]


def recorded(trace: Sequence[Job], rng: random.Random, num: int, rate: float) -> Iterator[tuple[float, Turn]]:
    """When each of ``num`` requests of copies of a trace comes, at ``rate`` a second."""
    for job in stretched(trace, rate, num / rate, rng):
        yield job.came_s, Turn(job.prompt(), job.num_new)


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
        self.cache = {
            worker: Cache(worker.usage.num_blocks * BLOCK_SIZE * BYTES_PER_TOKEN) for worker in (*self.p, *self.d)
        }
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
            worker.report(WorkerLoad(free_blocks=worker.usage.num_blocks - self.used_blocks[worker]), self.now_s)
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
            worker.usage.in_flight += 1
            self.in_d[worker].append(turn)
            self._admit(worker)

    def _prefill(self, turn: Turn, workers: list[Worker]) -> None:
        worker = self.pick_prefill.pick(workers, turn.prompt)
        worker.usage.in_flight += 1
        start_s = max(self.now_s, self.free_at_s[worker])
        found = min(self._found(worker, turn), turn.num_tokens - 1)
        self.hits[Role.PREFILL] += found
        self.num_tokens += turn.num_tokens
        end_s = start_s + self.costs.prefill_s + (turn.num_tokens - found) * self.costs.prefill_token_s
        self.free_at_s[worker] = end_s

        def done() -> None:
            worker.usage.in_flight -= 1
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
            if self.used_blocks[worker] + blocks > worker.usage.num_blocks and self.used_blocks[worker]:
                return
            waiting.popleft()
            self.used_blocks[worker] += blocks
            self._decode(worker, turn, blocks)

    def _decode(self, worker: Worker, turn: Turn, blocks: int) -> None:
        found = min(self._found(worker, turn), turn.num_tokens)
        self.hits[Role.DECODE] += found
        step_s = self.costs.step_s + self.costs.step_sequence_s * worker.usage.in_flight
        first_s = self.now_s + self.costs.read_s + (turn.num_tokens - found) * self.costs.read_token_s + step_s
        self.second_s.append(first_s - turn.came_s)

        def done() -> None:
            worker.usage.in_flight -= 1
            self.used_blocks[worker] -= blocks
            self.num_done += 1
            if turn.then is not None:
                following = turn.then
                self.at(self.now_s + turn.think_s, lambda: self.come(following))
            self._admit(worker)
            self._place()

        self.at(first_s + turn.num_new * step_s, done)


def _worker(name: str, role: Role, limit: int, num_blocks: int) -> Worker:
    return Worker(name, "", role, Usage(limit, num_blocks, BLOCK_SIZE), engine_id=name)


@dataclass(frozen=True)
class Row:
    """What one pair of policies came to."""

    first_p50_ms: float
    first_p99_ms: float
    second_p99_ms: float
    hits_p: float
    hits_d: float
    per_s: float


def simulate(pair: tuple[str, str], workload: Iterable[tuple[float, Turn]], *, num_workers: int, seed: int) -> Row:
    """Serve a workload with one pair of policies."""
    on_gone: OnGone = []
    rng = random.Random(seed)
    p = TwoChoices(rng) if pair[0] == "two_choices" else PREFILL_POLICIES[pair[0]](on_gone)
    d = TwoChoices(rng) if pair[1] == "two_choices" else DECODE_POLICIES[pair[1]](on_gone)
    simulation = Simulation(Costs(), p, d, num_workers)
    for when_s, turn in workload:
        simulation.at(when_s, lambda turn=turn: simulation.come(turn))  # type: ignore[misc]
    simulation.run()
    ttft, second = quantiles(simulation.ttft_s, n=100), quantiles(simulation.second_s, n=100)
    hits = [simulation.hits[role] / simulation.num_tokens for role in (Role.PREFILL, Role.DECODE)]
    per_s = simulation.num_done / simulation.now_s
    return Row(ttft[49] * 1e3, ttft[98] * 1e3, second[98] * 1e3, hits[0], hits[1], per_s)


def measure(given: argparse.Namespace) -> dict[tuple[str, str], list[Row]]:
    """A row of each pair for each seed. Raises BadTrace and OSError for a trace that cannot be read."""
    trace = None if given.trace is None else read_trace(given.trace)
    rows: dict[tuple[str, str], list[Row]] = {pair: [] for pair in PAIRS}
    for seed in range(given.seed, given.seed + given.runs):
        for pair in PAIRS:
            rng = random.Random(seed)
            workload = (
                conversations(rng, given.conversations, given.rate)
                if trace is None
                else recorded(trace, rng, given.conversations, given.rate)
            )
            rows[pair].append(simulate(pair, workload, num_workers=given.workers, seed=seed))
    return rows


def report(given: argparse.Namespace, rows: Mapping[tuple[str, str], Sequence[Row]]) -> Report:
    """The table, and a plot of the 99th percentile."""
    columns = [
        "prefill",
        "decode",
        "TTFT p50 ms",
        "TTFT p99 ms",
        "second token p99 ms",
        "hits P",
        "hits D",
        "requests/s",
    ]
    cells = [
        [*pair, *(spread([getattr(row, one.name) for row in some]) for one in fields(Row))]
        for pair, some in rows.items()
    ]
    load = (
        f"generated, {given.rate:g} conversations/s" if given.trace is None else f"recorded, {given.rate:g} requests/s"
    )
    title = f"{given.workers} P and {given.workers} D; load {load}; seeds {given.seed} to {given.seed + given.runs - 1}"
    values = [[row.first_p99_ms for row in some] for some in rows.values()]
    line = Line(
        "TTFT p99",
        [*map(float, range(1, len(rows) + 1))],
        [median(some) for some in values],
        [min(some) for some in values],
        [max(some) for some in values],
    )
    order = ", ".join(f"{number}: {p}, {d}" for number, (p, d) in enumerate(rows, 1))
    return Report(
        "Placement policies on simulated workers",
        "python -m bench.placement",
        ["The policies are the router's own; workers, caches and what a token costs are simulated."],
        [Table(title, columns, cells)],
        [Plot("placement-simulated", "TTFT, 99th percentile", order, "ms", [line])],
    )


def main() -> int:
    """Print the table; 2 for a trace that cannot be read."""
    parser = argparse.ArgumentParser(prog="bench.placement", description=__doc__)
    parser.add_argument(
        "--conversations", type=at_least(1), default=1500, help="or requests, of a trace (default %(default)s)"
    )
    parser.add_argument(
        "--rate", type=above_zero, default=5.0, help="new ones a second between bursts (default %(default)s)"
    )
    parser.add_argument("--workers", type=at_least(1), default=4, help="of each kind (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the first of the workloads' (default %(default)s)")
    parser.add_argument("--runs", type=at_least(1), default=5, help="seeds (default %(default)s)")
    parser.add_argument("--trace", type=Path, help="a recorded load instead of a generated one")
    parser.add_argument("--report", type=new_file, help="write the table and a plot there")
    given = parser.parse_args()
    try:
        found = report(given, measure(given))
    except (BadTrace, OSError) as error:
        print(f"bench.placement: {error}", file=sys.stderr)
        return 2
    print(markdown_table(found.tables[0]))
    if given.report is not None:
        found.write(given.report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
