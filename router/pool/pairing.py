"""Which decode worker can read the blocks of which prefill worker, and in what they differ if it cannot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.pool.worker import EngineKind

if TYPE_CHECKING:
    from router.pool.worker import Worker


def difference(source: Worker, reader: Worker, model: str) -> str:
    """Why ``reader`` cannot read ``source``'s blocks for a model, for people: what differs. Empty: it can.

    Baton's workers have a hash of everything that matters. A vLLM server's hash says all but the block size; where one
    of two servers did not tell its hash, what is known otherwise has to be equal.
    """
    if source.kind is not reader.kind:
        return "the engines: one is vLLM's, the other is Baton's"
    if source.kind is EngineKind.BATON:
        return "models, dtypes or block sizes" if source.compatibility_hash != reader.compatibility_hash else ""
    return _vllm_difference(source, reader, model)


def _vllm_difference(source: Worker, reader: Worker, model: str) -> str:
    for worker in (source, reader):
        if not worker.hands_off:
            return f"the connectors: a {worker.role} worker runs without NixlConnector"
    if _differ(source.version, reader.version):
        return f"the versions of vLLM: {source.version} and {reader.version}"
    if _differ(source.block_size, reader.block_size):
        return f"the block sizes: {source.block_size} and {reader.block_size}"
    if source.compatibility_hash and reader.compatibility_hash:
        if source.compatibility_hash == reader.compatibility_hash:
            return ""
        return (
            "the compatibility hashes of NIXL: of model, dtype, attention backend, KV cache dtype or connector version"
        )
    if _differ(base_root(source, model), base_root(reader, model)):
        return "what the model was loaded from"
    return ""


def base_root(worker: Worker, model: str) -> str:
    """What a worker loaded the model from; for an adapter, the model that the adapter is for. Empty: unknown."""
    facts = worker.facts.get(model)
    if facts is not None and facts.parent:
        facts = worker.facts.get(facts.parent)
    return "" if facts is None else facts.root


def _differ(one: object, other: object) -> bool:
    """Whether both are known and unequal."""
    return bool(one) and bool(other) and one != other
