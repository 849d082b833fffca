"""What vLLM loads: ``{"kv_connector": "BatonConnector", "kv_connector_module_path": "workers.vllm.connector"}``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector, NixlPullConnector
from vllm.logger import init_logger

from workers.vllm.scheduler import FenceScheduler
from workers.vllm.stats import FenceMetrics, FenceStats
from workers.vllm.versions import check_version
from workers.vllm.worker import FenceWorker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger(f"vllm.{__name__}")  # vLLM shows its own loggers only

#: What D does with a hand-off that it cannot use: it computes the prompt.
RECOMPUTE = "recompute"


class BatonConnector(NixlPullConnector):
    """NixlConnector in pull mode, with a fence. What each method is for says vLLM's ``KVConnectorBase_V1``.

    Raises UnknownVersionError for a vLLM that it was not run with, and ValueError for what it cannot do.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        check_version(vllm.__version__)
        settings = vllm_config.kv_transfer_config
        if settings.get_from_extra_config("bidirectional_kv_xfer", False):
            raise ValueError("BatonConnector reads from P only: leave bidirectional_kv_xfer out, or use NixlConnector.")
        if settings.kv_load_failure_policy != RECOMPUTE:
            logger.info("Prompts whose hand-off has ended are computed again: kv_load_failure_policy is %r.", RECOMPUTE)
            settings.kv_load_failure_policy = RECOMPUTE
        # Not NixlPullConnector's own, which makes the halves that have no fence.
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = FenceScheduler(vllm_config, self.engine_id, kv_cache_config)
        else:
            self.connector_worker = FenceWorker(vllm_config, self.engine_id, kv_cache_config)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> FenceStats:
        """The statistics of one interval."""
        return FenceStats() if data is None else FenceStats(data=data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> FenceMetrics:
        """The metrics of all intervals."""
        return FenceMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
