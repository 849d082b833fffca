"""The half in the scheduler's process: NixlConnector's, with a promise and a lease for each hand-off."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler

from baton_serve.core.protocol.vllm_handshake import PORT_FIELD
from baton_serve.workers.vllm.block_layout import BlockLayout
from baton_serve.workers.vllm.fence.allocations import Allocations
from baton_serve.workers.vllm.fence.promises import FIELD, Promises, num_slots, promise_of
from baton_serve.workers.vllm.messages import BatonStep
from baton_serve.workers.vllm.peers import handshake_port
from baton_serve.workers.vllm.usable import why_unusable, without_null

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from baton_serve.workers.vllm.handshakes import HandshakeServer
    from baton_serve.workers.vllm.leases import SchedulerLeases

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only

#: The field of ``kv_transfer_params`` that names the lease in the store.
LEASE_FIELD = "lease_id"


class BatonScheduler(NixlPullConnectorScheduler):
    """What each method is for says vLLM's ``KVConnectorBase_V1``. ``leases`` None: they are vLLM's own.

    ``handshakes`` None: only the side channel answers them. ``has_side_channel``: whether that is opened.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        engine_id: str,
        kv_cache_config: KVCacheConfig,
        leases: SchedulerLeases | None,
        handshakes: HandshakeServer | None,
        *,
        has_side_channel: bool,
    ) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._promises = Promises(num_slots(kv_cache_config.num_blocks, vllm_config.scheduler_config.max_num_seqs))
        self._allocations = Allocations()
        self._layout = BlockLayout.of(vllm_config, kv_cache_config)
        self._leases = leases
        self._newly_leased: list[str] = []
        self._handshakes = handshakes
        self._has_side_channel = has_side_channel
        self._handshake_ports: dict[str, int] = {}

    def set_xfer_handshake_metadata(self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]) -> None:
        """Answer handshakes from now on."""
        if self._handshakes is not None:
            self._handshakes.start({rank: msgspec.msgpack.encode(payload) for rank, payload in metadata.items()})
        if self._has_side_channel:
            super().set_xfer_handshake_metadata(metadata)

    def on_new_request(self, request: Request) -> None:
        """Even a request that waits may have D connect to P, for its heartbeats."""
        if (named := handshake_port(request.kv_transfer_params)) is not None:
            engine_id, port = named
            self._handshake_ports[engine_id] = port
        super().on_new_request(request)

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """Every block that a request gets anew comes from ``get_new_blocks`` of the pool."""
        if self._layout.counts_allocations:
            gpu_block_pool.get_new_blocks = self._allocations.counting(gpu_block_pool.get_new_blocks)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """How many tokens are read from P, and that the scheduler need not wait. None of a hand-off that cannot be
        used: P is told all the same, and frees the blocks.
        """
        if self._why_unusable(request):
            return 0, False
        matched: tuple[int, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return matched

    def _why_unusable(self, request: Request) -> str:
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill"):
            return ""
        return why_unusable(params, self._get_remote_prefill_token_count(len(request.prompt_token_ids or ())))

    def _prefill_backoff(self) -> int:
        """How many tokens P leaves to D at the end of a prompt.

        D computes the last one in any case. Of a layer with a window vLLM gives up what the *next* token does not need.
        If P computed the whole prompt, this may be a block that D needs for the last token.
        """
        backoff: int = super()._prefill_backoff()
        return max(backoff, int(self._layout.gives_up_blocks))

    def get_exchange_clipped_blocks(self, block_ids: Any, clip_ssm: bool = True) -> Any:
        """The blocks of each group that are handed over, or read."""
        clipped = super().get_exchange_clipped_blocks(block_ids, clip_ssm)
        if not self._layout.gives_up_blocks:
            return clipped
        return tuple(map(without_null, clipped))

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The workers hear of the promise in the step of the first tokens, so before P can answer."""
        params = request.kv_transfer_params
        if params and params.get("do_remote_decode"):
            self._promises.begin(request.request_id)
        if why := self._why_unusable(request):
            logger.warning("The prompt of %s is computed here: %s.", request.request_id, why)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """vLLM's metadata, and what the workers are told beside it."""
        reading = {
            request_id: promise_of(request.kv_transfer_params)
            for request_id, (request, *_) in self._reqs_need_recv.items()
        }
        metadata = super().build_connector_meta(scheduler_output)
        leased, self._newly_leased = self._newly_leased, []
        ended = {} if self._leases is None else self._leases.take_ended()
        ports, self._handshake_ports = self._handshake_ports, {}
        metadata.baton = BatonStep(self._promises.news(), reading, self._allocations.news(), leased, ended, ports)
        return metadata

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """The parameters of a hand-off carry the promise, and the lease's id."""
        keeps_blocks, params = super().request_finished(request, block_ids)
        request_id = request.request_id
        if not keeps_blocks or params is None:
            self._promises.drop(request_id)
            return keeps_blocks, params
        if self._handshakes is not None:
            params[PORT_FIELD] = self._handshakes.port
        if (promise := self._promises.promise(request_id)) is not None:
            params[FIELD] = promise.as_params()
        if self._leases is not None and (lease_id := self._leases.grant(request_id)) is not None:
            params[LEASE_FIELD] = lease_id
            self._newly_leased.append(request_id)
        return keeps_blocks, params

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """All ranks have overwritten the words of the hand-offs that ended."""
        super().update_connector_output(connector_output)
        for request_id in connector_output.finished_sending or ():
            self._promises.end(request_id)
            if self._leases is not None:
                self._leases.done(request_id)

    def shutdown(self) -> None:
        """Nobody is answered any more."""
        try:
            if self._handshakes is not None:
                self._handshakes.stop()
        finally:
            super().shutdown()
