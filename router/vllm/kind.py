"""vLLM's servers as a kind of worker: which of them can be a pair, and what the router may assume of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool.kind import Described, Difference, EngineKind, WorkerKind
from baton_serve.router.pool.worker import Worker

#: What is in vLLM's hash: ``compute_nixl_compatibility_hash`` of vLLM 0.32.
_OTHER_HASH = Difference(
    "NIXL compatibility hash, which is made of model, dtype, KV cache dtype and attention backend",
    "start both with the same --model, --dtype, --kv-cache-dtype and --attention-backend",
)

_OTHER_CONNECTOR = Difference(
    "NIXL compatibility hash, and only one of them has Baton's connector, which hands over models with sliding windows "
    "in a way of its own",
    "load Baton's connector on both, and start both with the same --model",
)


class VllmKind(WorkerKind):
    """A vLLM server's hash says all of its layout but the block size; one without a hash is alone in its layout."""

    def layout(self, worker: Described, model: str) -> str:
        """See ``WorkerKind.layout``."""
        parts = (worker.version, worker.usage.block_size, worker.server.hands_off, worker.server.other_format)
        return " ".join(map(str, (worker.compatibility_hash or worker.worker_id, *parts)))

    def same_readers(self, worker: Described, model: str) -> Hashable:
        """See ``WorkerKind.same_readers``. What ``difference`` compares is not all in the layout."""
        return worker.worker_id

    def difference(self, source: Described, reader: Described, model: str) -> Difference | None:
        """See ``WorkerKind.difference``. Where one of two servers has no hash, what else is known has to be equal."""
        if not (source.server.hands_off and reader.server.hands_off):
            return Difference("connector: one runs without NixlConnector", "start both with NixlConnector")
        if source.server.other_format or reader.server.other_format:
            return Difference(
                "side channel: that of one is in the format of a version of vLLM that Baton does not know",
                "run vLLM 0.32 on both",
            )
        if source is not reader and source.engine_id and source.engine_id == reader.engine_id:
            return Difference(
                "side channel: that of one answers for both, so nothing is known of the other",
                "say where each is, with ?side_channel=PORT after the address",
            )
        if _differ(source.version, reader.version):
            return Difference(
                f"version of vLLM: {source.version} and {reader.version}", "run the same version of vLLM on both"
            )
        if _differ(source.usage.block_size, reader.usage.block_size):
            return Difference(
                f"block size: {source.usage.block_size} and {reader.usage.block_size}",
                "start both with the same --block-size",
            )
        if source.compatibility_hash and reader.compatibility_hash:
            if source.compatibility_hash == reader.compatibility_hash:
                return None
            return _OTHER_HASH if source.has_fence == reader.has_fence else _OTHER_CONNECTOR
        if _differ(base_root(source, model), base_root(reader, model)):
            return Difference("what the model was loaded from", "start both with the same --model")
        return None


VLLM = VllmKind(EngineKind.VLLM, "vllm", is_watched=True, judges_bodies=True, has_weights=True, comments_tell=False)


def all_have_fence(workers: Iterable[Worker]) -> bool:
    """Whether every vLLM server that may be a D notices a read that comes too late."""
    return all(one.has_fence for one in workers if one.kind is VLLM and one.role is not Role.PREFILL)


def base_root(worker: Described, model: str) -> str:
    """What a worker loaded the model from; for an adapter, the model that the adapter is for. Empty: unknown."""
    facts = worker.facts.get(model)
    if facts is not None and facts.parent:
        facts = worker.facts.get(facts.parent)
    return "" if facts is None else facts.root


def _differ(one: object, other: object) -> bool:
    """Whether both are known and unequal."""
    return bool(one) and bool(other) and one != other
