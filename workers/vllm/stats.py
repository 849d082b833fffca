"""What is counted of the fence, in vLLM's metrics of the connector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from vllm.v1.metrics.utils import create_metric_per_engine

from baton_serve.workers.vllm.fence.reads import Verdict

if TYPE_CHECKING:
    from vllm.config import VllmConfig

#: The counter, by verdict.
NAME = "vllm:baton_fence_checks"
HELP = (
    "Hand-offs whose blocks a rank of D has read, by what the fence says of them. kept: P kept them; late: P had ended "
    "the hand-off by then, and nobody had taken a block; stale: another request had taken a block, and D computes from "
    "this one on; ended: as late or stale, which is not told; unpromised: it came without a promise of P's; failed: "
    "the fence could not be read. D computes the whole prompt of the last three."
)


def _key(verdict: Verdict) -> str:
    return f"num_fence_{verdict}"


class FenceStats(NixlKVConnectorStats):
    """vLLM's statistics of one interval, and how many checks had which verdict."""

    def reset(self) -> None:
        """Begin a new interval."""
        super().reset()
        self.data |= {_key(verdict): [] for verdict in Verdict}

    def record_check(self, verdict: Verdict) -> None:
        """One hand-off was checked."""
        self.data[_key(verdict)].append(1)

    def is_empty(self) -> bool:
        """Whether nothing was recorded in this interval."""
        return super().is_empty() and not any(self.data[_key(verdict)] for verdict in Verdict)

    def reduce(self) -> dict[str, int | float]:
        """The numbers of vLLM's log line."""
        counts = {f"Num fence {verdict}": len(self.data[_key(verdict)]) for verdict in Verdict}
        return {**super().reduce(), **counts}


class FenceMetrics(NixlPromMetrics):
    """vLLM's metrics of the connector, and the checks by verdict."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        checks = self._counter_cls(name=NAME, documentation=HELP, labelnames=[*labelnames, "verdict"])
        self._checks = {
            verdict: create_metric_per_engine(
                checks, {engine: [*values, str(verdict)] for engine, values in per_engine_labelvalues.items()}
            )
            for verdict in Verdict
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add an interval."""
        super().observe(transfer_stats_data, engine_idx)
        for verdict, counters in self._checks.items():
            counters[engine_idx].inc(len(transfer_stats_data[_key(verdict)]))
