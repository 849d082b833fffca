"""Decides which part of the machine each worker gets: CPU threads, GPUs and their memory. Pure.

A setting that was given (threads, a device, a fraction) is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton_serve.baton.up.preflight import PreflightError
from baton_serve.workers.settings import WorkerSettings

#: Share of a GPU's free memory that all workers on it take together for their caches.
GPU_MEMORY_FRACTION = 0.9
#: Of a machine's memory, the part that the caches of all workers on CPUs take together, and the most that one takes.
CPU_CACHE_SHARE = 0.125
MAX_CPU_CACHE_BYTES = 2**30
#: Devices that do not name one GPU, unlike ``cuda:1`` and ``cpu``.
_OPEN_DEVICES = ("auto", "cuda")


@dataclass(frozen=True)
class Machine:
    """What the workers share."""

    num_cpus: int
    #: Ids for ``CUDA_VISIBLE_DEVICES``; empty without a GPU.
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0


@dataclass(frozen=True)
class Share:
    """One worker's part of the machine, as flags and environment variables for it."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


def share_out(
    workers: Sequence[WorkerSettings],
    machine: Machine,
    environ: Mapping[str, str],
    threads_per_worker: int | None = None,
    remedy: str = "lower --tp, --prefill-tp or --decode-tp",
    max_cache_bytes: int = MAX_CPU_CACHE_BYTES,
) -> list[Share]:
    """One share for each worker. ``environ`` is the environment that all of them are started with, ``max_cache_bytes``
    the most that a worker on CPUs takes for its cache.

    Raises PreflightError, which names the remedy, if a worker has more ranks than there are GPUs.
    """
    threads = _threads(workers, machine, environ, threads_per_worker)
    gpus = _gpus(workers, machine, remedy)
    caches = _caches(workers, machine, max_cache_bytes)
    return [
        Share({**one, **cache, **other.flags}, other.environ)
        for one, cache, other in zip(threads, caches, gpus, strict=True)
    ]


def _caches(workers: Sequence[WorkerSettings], machine: Machine, most: int) -> list[dict[str, int]]:
    """The KV cache of each worker on CPUs. All of it is resident from the start, because other processes read it."""
    fair = int(machine.memory_bytes * CPU_CACHE_SHARE / len(workers)) or most
    size = {"kv_cache_bytes": min(fair, most)} if min(fair, most) < MAX_CPU_CACHE_BYTES else {}
    return [
        {} if _is_set(worker, "kv_cache_bytes") or _is_set(worker, "num_blocks") or _on_gpu(worker, machine) else size
        for worker in workers
    ]


def _on_gpu(worker: WorkerSettings, machine: Machine) -> bool:
    return worker.device != "cpu" and bool(machine.gpus)


def _threads(
    workers: Sequence[WorkerSettings], machine: Machine, environ: Mapping[str, str], given: int | None
) -> list[dict[str, int]]:
    """The same number of threads for every rank, however many ranks its worker has: a slow rank would hold up its whole
    group.
    """
    if given is not None:
        return [{"torch_threads": given}] * len(workers)
    if "OMP_NUM_THREADS" in environ:
        return [{}] * len(workers)
    per_rank = max(1, machine.num_cpus // sum(worker.tp for worker in workers))
    return [{} if _is_set(worker, "torch_threads") else {"torch_threads": per_rank * worker.tp} for worker in workers]


def _gpus(workers: Sequence[WorkerSettings], machine: Machine, remedy: str) -> list[Share]:
    """One GPU for each rank, in turn. Where there are too few, the workers on a GPU share its memory."""
    if not machine.gpus:
        return [Share()] * len(workers)
    wanted = [worker.tp if worker.device in _OPEN_DEVICES else 0 for worker in workers]
    if max(wanted, default=0) > len(machine.gpus):
        raise PreflightError(
            f"a worker of {max(wanted)} ranks needs {max(wanted)} GPUs, and there are {len(machine.gpus)}: {remedy}"
        )
    turns = _in_turn(wanted, machine.gpus)
    crowd = Counter(gpu for turn in turns for gpu in turn)
    shares = []
    for worker, turn in zip(workers, turns, strict=True):
        sharing = max((crowd[gpu] for gpu in turn), default=len(workers))
        fraction = {"gpu_memory_fraction": round(GPU_MEMORY_FRACTION / sharing, 4)}
        flags = {} if worker.device == "cpu" or _is_set(worker, "gpu_memory_fraction") else fraction
        shares.append(Share(flags, {"CUDA_VISIBLE_DEVICES": ",".join(turn)} if turn else {}))
    return shares


def _in_turn(wanted: Sequence[int], gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """For each worker the next GPUs, as many as it wants. The first GPU follows the last one."""
    turns, start = [], 0
    for number in wanted:
        end = start + number
        turns.append(tuple(gpus[index % len(gpus)] for index in range(start, end)))
        start = end
    return turns


def _is_set(worker: WorkerSettings, name: str) -> bool:
    """Whether this setting was given, by flag, variable or file."""
    return name in worker.model_fields_set
