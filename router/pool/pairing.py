"""Which decode worker can read the blocks of which prefill worker, and in what they differ if it cannot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from baton_serve.router.pool.engine_kind import EngineKind

if TYPE_CHECKING:
    from baton_serve.router.pool.worker import Worker


class Difference(NamedTuple):
    """In ``what`` two workers differ, so that one cannot read the other's blocks, and what to do about it."""

    what: str
    change: str


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


def difference(source: Worker, reader: Worker, model: str) -> Difference | None:
    """In what the two differ, so that ``reader`` cannot read ``source``'s blocks for a model. None: it can.

    Baton's workers have a hash of everything that matters, and one of each adapter. A vLLM server's hash says all but
    the block size; where one of two servers did not tell its hash, what is known otherwise has to be equal.
    """
    if (source.kind is EngineKind.VLLM) is not (reader.kind is EngineKind.VLLM):
        return Difference("engine: one is vLLM's, the other is not", "pair workers of one kind")
    if source.kind is EngineKind.VLLM:
        return _vllm_difference(source, reader, model)
    if source.compatibility_hash != reader.compatibility_hash:
        return Difference("models, dtypes or block sizes", "start both alike")
    if source.adapter_of(model) != reader.adapter_of(model):
        return Difference("what is behind the name of the model: another adapter", "start both with the same --lora")
    return None


def _vllm_difference(source: Worker, reader: Worker, model: str) -> Difference | None:
    if not (source.hands_off and reader.hands_off):
        return Difference("connector: one runs without NixlConnector", "start both with NixlConnector")
    if source.other_format or reader.other_format:
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
    if _differ(source.block_size, reader.block_size):
        return Difference(
            f"block size: {source.block_size} and {reader.block_size}", "start both with the same --block-size"
        )
    if source.compatibility_hash and reader.compatibility_hash:
        if source.compatibility_hash == reader.compatibility_hash:
            return None
        return _OTHER_HASH if source.has_fence == reader.has_fence else _OTHER_CONNECTOR
    if _differ(base_root(source, model), base_root(reader, model)):
        return Difference("what the model was loaded from", "start both with the same --model")
    return None


def base_root(worker: Worker, model: str) -> str:
    """What a worker loaded the model from; for an adapter, the model that the adapter is for. Empty: unknown."""
    facts = worker.facts.get(model)
    if facts is not None and facts.parent:
        facts = worker.facts.get(facts.parent)
    return "" if facts is None else facts.root


def _differ(one: object, other: object) -> bool:
    """Whether both are known and unequal."""
    return bool(one) and bool(other) and one != other
