"""The half in the scheduler's process: NixlConnector's, with a promise for each hand-off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler

from workers.vllm.fence.promises import FIELD, Promises, num_slots, promise_of
from workers.vllm.messages import FenceStep

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class FenceScheduler(NixlPullConnectorScheduler):
    """What each method is for says vLLM's ``KVConnectorBase_V1``."""

    def __init__(self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._promises = Promises(num_slots(kv_cache_config.num_blocks, vllm_config.scheduler_config.max_num_seqs))

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The workers hear of the promise in the step that computes the first tokens, so before any D can."""
        params = request.kv_transfer_params
        if params and params.get("do_remote_decode"):
            self._promises.begin(request.request_id)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """vLLM's metadata, and what the workers are told of the fence."""
        reading = {
            request_id: promise_of(request.kv_transfer_params)
            for request_id, (request, *_) in self._reqs_need_recv.items()
        }
        metadata = super().build_connector_meta(scheduler_output)
        metadata.fence = FenceStep(self._promises.news(), reading)
        return metadata

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """The parameters of a hand-off carry the promise."""
        keeps_blocks, params = super().request_finished(request, block_ids)
        promise = self._promises.promise(request.request_id)
        if not keeps_blocks:
            self._promises.drop(request.request_id)
        elif params is not None and promise is not None:
            params[FIELD] = promise.as_params()
        return keeps_blocks, params

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """All ranks have overwritten the words of the hand-offs that ended."""
        super().update_connector_output(connector_output)
        for request_id in connector_output.finished_sending or ():
            self._promises.end(request_id)
