"""Decides how ``baton up`` starts vLLM servers, and a router in front of them. Pure, but for the ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from baton_serve.baton.config.configuration import Document
from baton_serve.baton.processes.child import ChildSpec
from baton_serve.baton.processes.vllm.connectors import BATON, STOCK, Connector
from baton_serve.baton.processes.vllm.extra_args import ExtraArgs
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.processes.vllm.program import VllmProgram
from baton_serve.baton.processes.vllm.server import ServerPlace, ServerShare, VllmModel, server_spec
from baton_serve.baton.settings import UpSettings
from baton_serve.baton.up.machine_shares import GPU_MEMORY_FRACTION, Machine, Share, share_out
from baton_serve.baton.up.plan import ProcessPlan, ServedModel, router_child, router_flags, worker_flags
from baton_serve.baton.up.preflight import PreflightError
from baton_serve.workers.settings import WorkerSettings

#: Of a machine's memory, the part that all servers without GPU take together for their caches, and the most that one
#: of them takes, GiB.
CPU_CACHE_SHARE = 0.25
MAX_CPU_CACHE_GIB = 8


@dataclass(frozen=True)
class VllmServers:
    """The servers: which program, where each listens, what each is given besides."""

    program: VllmProgram
    extra: ExtraArgs
    #: The prefill servers first.
    places: tuple[ServerPlace, ...]
    lease_duration_s: int
    #: The key that they ask the router for; empty: none.
    api_key: str = field(default="", repr=False)


def connector_of(settings: UpSettings) -> Connector:
    """What the servers hand their blocks over with."""
    return STOCK if settings.stock else BATON


def take_places(settings: UpSettings, extra: ExtraArgs, ports: HeldPorts) -> tuple[ServerPlace, ...]:
    """A place for each server. Raises PreflightError where there are too few ports."""
    num_servers = settings.prefill + settings.decode
    try:
        num = extra.num_engines
        return tuple(ServerPlace(ports.take(), ports.take(num), ports.take(num)) for _ in range(num_servers))
    except OSError as error:
        raise PreflightError(f"{error}, which data-parallel ranks need for their side channels") from None


def make_vllm_plan(
    settings: UpSettings,
    model: ServedModel,
    servers: VllmServers,
    command: Sequence[str],
    environ: Mapping[str, str],
    document: Document,
    machine: Machine,
    redis_url: str,
) -> ProcessPlan:
    """The plan. Without ``redis_url`` the router does without Redis. It is given the addresses also of servers that
    announce themselves: it knows them before they serve, and whatever becomes of Redis. Raises ConfigurationError when
    the router would refuse its settings, PreflightError where there are too few GPUs.
    """
    limit = servers.extra.max_num_seqs
    names = (name for name, _ in worker_flags(settings))
    addresses = [place.router_address(limit, name) for place, name in zip(servers.places, names, strict=True)]
    flags = router_flags(settings)
    flags |= {"prefill": ",".join(addresses[: settings.prefill]), "decode": ",".join(addresses[settings.prefill :])}
    if not redis_url:
        flags["redis_url"] = ""
    router = router_child(flags, command, environ, document)
    announces = bool(redis_url) and not settings.stock
    children = tuple(_children(settings, model, servers, environ, machine, announces=announces))
    return ProcessPlan(router, decode=children[settings.prefill :], prefill=children[: settings.prefill])


def _children(
    settings: UpSettings,
    model: ServedModel,
    servers: VllmServers,
    environ: Mapping[str, str],
    machine: Machine,
    *,
    announces: bool,
) -> Iterator[ChildSpec]:
    named = _workers(settings, model, servers.program)
    machine = replace(machine, gpus=()) if servers.program.on_cpu else machine
    shares = share_out([*named.values()], machine, environ, settings.threads_per_worker)
    connector = connector_of(settings)
    lease_duration_s, name = servers.lease_duration_s, model.name or ""
    served = VllmModel(
        model.place, lease_duration_s, name, servers.extra, connector, announces, api_key=servers.api_key
    )
    cache_gib = _cpu_cache_gib(machine, len(named))
    for (worker_name, worker), place, share in zip(named.items(), servers.places, shares, strict=True):
        part = _server_share(worker.tp, share, cache_gib)
        yield server_spec(worker_name, worker.role, servers.program, served, place, part, environ)


def _workers(settings: UpSettings, model: ServedModel, program: VllmProgram) -> dict[str, WorkerSettings]:
    """The servers, by name, as workers of ours, which the machine is shared out between."""
    common: dict[str, Any] = {"model": model.place, "served_model_name": model.name}
    common["device"] = "cpu" if program.on_cpu else "auto"
    return {name: WorkerSettings(**own, **common) for name, own in worker_flags(settings)}


def _server_share(tp: int, share: Share, cache_gib: int) -> ServerShare:
    threads = share.flags.get("torch_threads")
    memory = share.flags.get("gpu_memory_fraction")
    return ServerShare(
        tp=tp,
        threads=None if threads is None else max(1, threads // tp),
        gpu_memory=None if memory is None or memory >= GPU_MEMORY_FRACTION else memory,
        cpu_cache_gib=cache_gib,
        environ=share.environ,
    )


def _cpu_cache_gib(machine: Machine, num_servers: int) -> int:
    """GiB for the cache of one server: at least one, which is the least that vLLM can be told."""
    together = machine.memory_bytes * CPU_CACHE_SHARE / 2**30
    return max(1, min(MAX_CPU_CACHE_GIB, int(together / num_servers)))
