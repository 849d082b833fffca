"""The length of a lease: blocks that nobody wants any more against leases that lapse while somebody does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bench.report.model import Plot, Table
from bench.scale.cluster.cluster import Cluster
from bench.scale.faults import kill_routers, kill_workers, pause_renewals
from bench.scale.runs import Setting, figures, repeat, run

LENGTHS_S = (1, 2, 6, 20, 60)
#: Its length unless it is set.
DEFAULT_S = 6
#: More than D can take, so that requests are held.
SHARE, P_TO_D = 1.5, 2.5
NUM_ROUTERS = 4
#: Assumed: how often and how long the renewals of a router stand still.
PAUSE_EVERY_S, MEAN_PAUSE_S = 3.0, 1.5


def ask(setting: Setting) -> tuple[list[Table], list[Plot]]:
    """Leases of several lengths, while routers, P and D die and renewals stand still now and then."""
    variants = [*((seconds, False) for seconds in LENGTHS_S), (DEFAULT_S, True)]
    base = replace(setting.plan(P_TO_D), num_routers=NUM_ROUTERS)
    rate = SHARE * setting.full_rate(base)

    def once(variant: tuple[int, bool], seed: int) -> Mapping[str, float]:
        def prepare(cluster: Cluster) -> None:
            kill_routers(cluster, NUM_ROUTERS // 2, setting.seconds, seed)
            kill_workers(cluster, 1, 1, setting.seconds, seed)
            pause_renewals(cluster, MEAN_PAUSE_S, PAUSE_EVERY_S, setting.seconds, seed)

        plan = replace(base, lease_ms=1000 * variant[0], cleans_up=variant[1])
        cluster = run(plan, setting, rate, seed, prepare)
        return {
            **figures(cluster),
            "stranded": cluster.stranded_block_s / (NUM_ROUTERS // 2),
            "lapsed": 1000 * cluster.leases.num_lost / max(1, cluster.leases.num_granted),
            "renewals": cluster.leases.num_renewals / setting.seconds,
        }

    found = repeat(variants, setting.seeds, once)
    names = ("stranded", "lapsed", "wasted_share", "renewals")
    table = Table(
        "Length of a lease, renewed every quarter of it; two of four routers, one P and one D die, renewals stand "
        f"still every {PAUSE_EVERY_S:g} s for {MEAN_PAUSE_S:g} s on average",
        [
            "lease s",
            "another router cleans up",
            "stranded block-seconds per dead router",
            "lapsed of 1,000 leases",
            "wasted prefill",
            "renewing calls/s",
        ],
        [
            [str(variant[0]), "yes" if variant[1] else "no", *(found.cell(variant, name) for name in names)]
            for variant in variants
        ],
    )
    return [table], []
