"""When one Redis is too small: what its calls cost is measured here, how many there are follows from the cluster."""

from __future__ import annotations

from baton_serve.baton.processes.embedded_redis import EmbeddedRedisError
from bench.report.model import Line, Plot, Table
from bench.report.spread import spread
from bench.scale.redis_cost import RedisCosts, measure
from bench.scale.runs import Setting

#: The defaults of a router and of an idle worker. A busy one announces itself up to fifty times a second.
RENEW_INTERVAL_S, ANNOUNCE_RATE = 1.5, 4.0
#: Workers, half of them P; routers; requests a second; leases held at once.
CLUSTERS = (
    (64, 4, 200, 2_000),
    (250, 10, 1_000, 25_000),
    (1_000, 40, 4_000, 20_000),
    (1_000, 40, 4_000, 100_000),
    (3_000, 120, 12_000, 300_000),
)
NUM_WORKERS = (50, 100, 200, 500, 1_000, 2_000, 4_000)


def ask(setting: Setting) -> tuple[list[Table], list[Plot]]:
    """As many measurements as there are seeds, and what clusters of several sizes would ask of that Redis."""
    try:
        costs = [measure() for _ in setting.seeds]
    except EmbeddedRedisError as error:
        return [Table("When Redis is full: not measured", ["why"], [[str(error)]])], []
    calls = Table(
        "CPU of one Redis for the project's own calls, us",
        ["call", "us"],
        [
            [label, spread([getattr(one, name) for one in costs])]
            for name, label in (
                ("renew_us", "a renewal of one engine's leases"),
                ("renew_lease_us", "and each lease in it"),
                ("grant_us", "a grant"),
                ("done_us", "the report that a lease has been read"),
                ("announce_us", "a worker's announcement"),
                ("deliver_us", "and each router that listens"),
            )
        ],
    )
    rows = [[*map(str, cluster), *_cells(costs, *cluster)] for cluster in CLUSTERS]
    shares = Table(
        f"Share of one core of Redis; renewed every {RENEW_INTERVAL_S} s, announced {ANNOUNCE_RATE:g} times/s",
        ["workers", "routers", "requests/s", "leases held", "renewals", "grants and ends", "announcements", "all"],
        rows,
    )
    return [calls, shares], [_plot(costs)]


def _parts(costs: RedisCosts, workers: int, routers: int, rate: float, held: int) -> tuple[float, float, float]:
    return (
        costs.renewals(held, routers * workers // 2, RENEW_INTERVAL_S),
        costs.requests(rate),
        costs.announcements(workers, routers, ANNOUNCE_RATE),
    )


def _cells(costs: list[RedisCosts], workers: int, routers: int, rate: float, held: int) -> list[str]:
    parts = [_parts(one, workers, routers, rate, held) for one in costs]
    return [*(spread(column) for column in zip(*parts, strict=True)), spread([sum(part) for part in parts])]


def _plot(costs: list[RedisCosts]) -> Plot:
    """For each worker: 1/25 of a router, 4 requests a second, 100 leases held."""
    labels = ("renewals", "grants and ends", "announcements")
    parts = {num: [_parts(one, num, max(1, num // 25), 4 * num, 100 * num) for one in costs] for num in NUM_WORKERS}
    lines = [
        Line.of_runs(label, {float(num): [part[place] for part in parts[num]] for num in NUM_WORKERS})
        for place, label in enumerate(labels)
    ]
    title = "One Redis: 25 workers per router, 4 requests/s and 100 held leases per worker"
    return Plot("scale-redis", title, "workers", "cores", lines, log_x=True, log_y=True)
