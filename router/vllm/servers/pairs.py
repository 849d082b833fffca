"""What is wrong between vLLM servers: models without a pair of workers, and side channels of other servers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from baton_serve.core.protocol.worker import Role
from baton_serve.router.pool import Worker
from baton_serve.router.pool.kind import difference
from baton_serve.router.vllm.kind import VLLM


def pair_problems(workers: Iterable[Worker]) -> dict[Worker, str]:
    """For every vLLM server a sentence that says what is wrong and what to change; empty: nothing."""
    known = [worker for worker in workers if worker.models is not None]
    servers = [worker for worker in known if worker.kind is VLLM]
    return {worker: _same_engine(worker, servers) or _without_pair(worker, known) for worker in servers}


def _same_engine(worker: Worker, servers: Sequence[Worker]) -> str:
    """Whether the side channel that was asked belongs to another server, as it does where two have the default port."""
    for other in servers:
        if other is worker or _have_one_name(worker, other):
            continue
        if worker.engine_id and other.engine_id == worker.engine_id:
            if worker.given is None or other.given is None:
                return (
                    f"It and {other.worker_id} are one engine under two addresses: BATON_ANNOUNCE_URL of the "
                    "server has to be the address that routers are given, if they are given one."
                )
            place = "" if worker.server.side_channel is None else " at {}:{}".format(*worker.server.side_channel)
            return (
                f"The side channel{place} and that of {other.worker_id} are of one engine: say where each is, "
                "with ?side_channel=PORT after the address (VLLM_NIXL_SIDE_CHANNEL_PORT of each server)."
            )
    return ""


def _have_one_name(worker: Worker, other: Worker) -> bool:
    """Whether both were added under one host name, whose workers may be one server for a while."""
    return worker.given is not None and other.given == worker.given


def _without_pair(worker: Worker, known: Sequence[Worker]) -> str:
    if worker.role is Role.BOTH:
        return ""
    other_role = Role.DECODE if worker.role is Role.PREFILL else Role.PREFILL
    others = [other for other in known if other.role in {other_role, Role.BOTH}]
    if not others:
        return ""
    for model in worker.models or ():
        serving = [other for other in others if other.serves(model)]
        if not serving:
            return f"It serves {model}, which no {other_role} worker does: load it there as well, or not here."
        text = _no_pair(worker, serving, model)
        if text:
            return text
    return ""


def _no_pair(worker: Worker, serving: Sequence[Worker], model: str) -> str:
    """Why none of ``serving`` can be paired with the worker; empty if one can."""
    is_source = worker.role is Role.PREFILL
    found = [difference(worker, one, model) if is_source else difference(one, worker, model) for one in serving]
    first = found[0]
    if first is None or None in found:
        return ""
    return (
        f"It is not paired for {model}: it and {serving[0].worker_id} differ in {first.what}. "
        f"To change that, {first.change}."
    )
