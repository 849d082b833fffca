"""What vLLM loads when it is told ``"kv_connector": "BatonConnector"`` and
``"kv_connector_module_path": "baton_serve.workers.vllm.connector"``.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import vllm
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector, NixlPullConnector

from baton_serve.workers.vllm.handshakes import HandshakeServer
from baton_serve.workers.vllm.in_redis import InRedis
from baton_serve.workers.vllm.peers import Peers
from baton_serve.workers.vllm.scheduler import BatonScheduler
from baton_serve.workers.vllm.settings import ConnectorSettings
from baton_serve.workers.vllm.stats import FenceMetrics, FenceStats
from baton_serve.workers.vllm.versions import check_version
from baton_serve.workers.vllm.worker import BatonWorker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only

#: What D does with a hand-off that it cannot use: it computes the prompt.
RECOMPUTE = "recompute"


class BatonConnector(NixlPullConnector):
    """NixlConnector in pull mode, with a fence, and where there is a Redis, with leases and an announcement there.

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
        #: Only the scheduler's half has it.
        self._in_redis: InRedis | None = None
        if role == KVConnectorRole.SCHEDULER:
            if unknown := ConnectorSettings.unknown(os.environ):
                logger.warning("Not read by BatonConnector: %s. Are they spelled right?", ", ".join(unknown))
            side_channel = envs.VLLM_NIXL_SIDE_CHANNEL_HOST, envs.VLLM_NIXL_SIDE_CHANNEL_PORT
            handshakes = _handshakes(vllm_config, given)
            self._in_redis = InRedis(
                vllm_config,
                self.engine_id,
                given,
                version=vllm.__version__,
                side_channel=side_channel,
                handshake_port=handshakes.port if handshakes and given.is_side_channel_closed else 0,
            )
            self.connector_scheduler = BatonScheduler(
                vllm_config,
                self.engine_id,
                kv_cache_config,
                self._in_redis.leases,
                handshakes,
                has_side_channel=not given.is_side_channel_closed,
            )
        else:
            peers = Peers(given.handshake_key(), asks_side_channels=not given.is_side_channel_closed)
            self.connector_worker = BatonWorker(vllm_config, self.engine_id, kv_cache_config, peers)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """vLLM calls this in each step before anything is written into blocks."""
        assert self.connector_worker is not None
        self.connector_worker.take_blocks(kv_connector_metadata)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """The scheduler is complete: the server's port opens soon."""
        assert self.connector_scheduler is not None
        self.connector_scheduler.bind_gpu_block_pool(gpu_block_pool)
        if self._in_redis is not None:
            self._in_redis.start(gpu_block_pool.get_num_free_blocks)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """A step begins."""
        if self._in_redis is not None:
            self._in_redis.load.stepped(scheduler_output.num_scheduled_tokens)
        return super().build_connector_meta(scheduler_output)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request is over. vLLM asks a connector that knows several KV cache groups this, and not the other."""
        if self._in_redis is not None:
            self._in_redis.load.finished(request.request_id)
        keeps_blocks, params = super().request_finished_all_groups(request, block_ids)
        return keeps_blocks, params

    def shutdown(self) -> None:
        """Routers hear first that the server is gone and its leases have ended, and prefill elsewhere."""
        try:
            if self._in_redis is not None:
                self._in_redis.stop()
        finally:
            super().shutdown()

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
    if parallel.pipeline_parallel_size > 1:
        raise ValueError("BatonConnector does not do pipeline parallelism: use NixlConnector for it, on P and D.")
    if vllm_config.aux_output_config.enabled:
        raise ValueError("--enable-return-routed-experts is incompatible with BatonConnector, as with NixlConnector.")


def _handshakes(vllm_config: VllmConfig, given: ConnectorSettings) -> HandshakeServer | None:
    """What answers handshakes over HTTP, if there is a token. Raises OSError and ValueError for what cannot be."""
    key = given.handshake_key()
    if key is None:
        return None
    dp_index = vllm_config.parallel_config.data_parallel_index
    port = given.port_of_handshakes(envs.VLLM_NIXL_SIDE_CHANNEL_PORT + dp_index, dp_index)
    return HandshakeServer(envs.VLLM_NIXL_SIDE_CHANNEL_HOST, port, key)
