"""What vLLM loads: ``{"kv_connector": "BatonConnector", "kv_connector_module_path": "workers.vllm.connector"}``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import vllm
import vllm.envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector, NixlPullConnector

from core.leases.redis_store import RedisLeaseStore
from workers.vllm.handshakes import HandshakeServer
from workers.vllm.leases import SchedulerLeases
from workers.vllm.peers import Peers
from workers.vllm.scheduler import BatonScheduler
from workers.vllm.settings import ConnectorSettings
from workers.vllm.stats import FenceMetrics, FenceStats
from workers.vllm.versions import check_version
from workers.vllm.worker import BatonWorker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only

#: vLLM's default of ``kv_lease_duration``, seconds.
DEFAULT_LEASE_S = 30
#: What D does with a hand-off that it cannot use: it computes the prompt.
RECOMPUTE = "recompute"


class BatonConnector(NixlPullConnector):
    """NixlConnector in pull mode, with a fence, and with leases in Redis where there is one.

    What each method is for says vLLM's ``KVConnectorBase_V1``. Raises UnknownVersionError for a vLLM that it was not
    run with, and ValueError for what it cannot do.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        check_version(vllm.__version__)
        settings = vllm_config.kv_transfer_config
        _refuse(vllm_config)
        if settings.kv_load_failure_policy != RECOMPUTE:
            logger.info("Prompts whose hand-off has ended are computed again: kv_load_failure_policy is %r.", RECOMPUTE)
            settings.kv_load_failure_policy = RECOMPUTE
        # Not NixlPullConnector's own, which makes the halves that have no fence.
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        given = ConnectorSettings()
        if role == KVConnectorRole.SCHEDULER:
            leases = _leases(vllm_config, self.engine_id)
            self.connector_scheduler = BatonScheduler(
                vllm_config,
                self.engine_id,
                kv_cache_config,
                leases,
                _handshakes(vllm_config),
                has_side_channel=not given.is_side_channel_closed,
            )
        else:
            peers = Peers(given.handshake_key(), asks_side_channels=not given.is_side_channel_closed)
            self.connector_worker = BatonWorker(vllm_config, self.engine_id, kv_cache_config, peers)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """The scheduler's pool of blocks."""
        assert self.connector_scheduler is not None
        self.connector_scheduler.bind_gpu_block_pool(gpu_block_pool)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """vLLM calls this in each step before anything is written into blocks."""
        assert self.connector_worker is not None
        self.connector_worker.take_blocks(kv_connector_metadata)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> FenceStats:
        """The statistics of one interval."""
        return FenceStats() if data is None else FenceStats(data=data)

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> FenceMetrics:
        """The metrics of all intervals; the arguments are theirs."""
        return FenceMetrics(*args, **kwargs)


def _refuse(vllm_config: VllmConfig) -> None:
    """Raise ValueError for what this connector cannot do, or what vLLM arranges by the name of NixlConnector."""
    if vllm_config.kv_transfer_config.get_from_extra_config("bidirectional_kv_xfer", False):
        raise ValueError("BatonConnector reads from P only: leave bidirectional_kv_xfer out, or use NixlConnector.")
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ValueError("BatonConnector does not do context parallelism: use NixlConnector for it.")
    if vllm_config.aux_output_config.enabled:
        raise ValueError("--enable-return-routed-experts is incompatible with BatonConnector, as with NixlConnector.")


def _leases(vllm_config: VllmConfig, engine_id: str) -> SchedulerLeases | None:
    """The leases of a P in Redis, if the environment names one. Raises ValueError for one that cannot be used."""
    settings = vllm_config.kv_transfer_config
    given = ConnectorSettings()
    url = given.redis_login()
    if not settings.is_kv_producer:
        return None
    if not url:
        logger.info("BATON_REDIS_URL is not set: leases are vLLM's own, which a D or a router renews over NIXL.")
        return None
    duration_ms = 1000 * int(settings.get_from_extra_config("kv_lease_duration", DEFAULT_LEASE_S))
    store = RedisLeaseStore(url)
    leases = SchedulerLeases(store, engine_id, duration_ms=duration_ms, redis_grace_ms=given.redis_grace_ms)
    leases.start()
    return leases


def _handshakes(vllm_config: VllmConfig) -> HandshakeServer | None:
    """What answers handshakes over HTTP, if there is a token. Raises OSError and ValueError for what cannot be."""
    given = ConnectorSettings()
    key = given.handshake_key()
    if key is None:
        return None
    dp_index = vllm_config.parallel_config.data_parallel_index
    port = given.port_of_handshakes(vllm.envs.VLLM_NIXL_SIDE_CHANNEL_PORT + dp_index, dp_index)
    return HandshakeServer(vllm.envs.VLLM_NIXL_SIDE_CHANNEL_HOST, port, key)
