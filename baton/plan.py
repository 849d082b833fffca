"""Which processes ``baton up`` starts, with which flags and environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.child import ChildSpec
from baton.configuration import FILE_SUFFIX, Document, flag, gather, load, variable
from baton.sections import settings_model
from baton.settings import UpSettings

#: Share of a GPU's free memory that all workers on it take together for their caches.
GPU_MEMORY_FRACTION = 0.9


@dataclass(frozen=True)
class Machine:
    """What there is to share between the workers."""

    num_cpus: int
    #: Ids for ``CUDA_VISIBLE_DEVICES``; empty without a GPU.
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The processes by what they are; ``stages`` is the order in which they are stopped."""

    router: ChildSpec
    decode: tuple[ChildSpec, ...]
    prefill: tuple[ChildSpec, ...]

    @property
    def stages(self) -> tuple[tuple[ChildSpec, ...], ...]:
        """The router first, so that nothing new arrives; then the readers; last those whose blocks they read."""
        return ((self.router,), self.decode, self.prefill)


@dataclass(frozen=True)
class Model:
    """What is served: a folder or hub id, and what clients call it (None: as the workers would by themselves)."""

    place: str
    name: str | None = None


def choose_model(settings: UpSettings, environ: Mapping[str, str], document: Document, demo: Model) -> Model:
    """``--model``, else the worker section's model, else the demo. A name that somebody has set stays."""
    if settings.model is not None:
        return Model(settings.model)
    given = gather(settings_model("worker"), environ, document)
    if "model" in given:
        return Model(str(given["model"]))
    return Model(demo.place) if "served_model_name" in given else demo


def child_environ(environ: Mapping[str, str], redis_url: str, internal_token: str) -> dict[str, str]:
    """Secrets travel in the environment, never on a command line, where ``ps`` shows them to everybody."""
    result = dict(environ)
    for name, value in (("redis_url", redis_url), ("internal_token", internal_token)):
        key = variable("up", name)
        result.pop(key + FILE_SUFFIX, None)
        result[key] = value
    result["PYTHONUNBUFFERED"] = "1"
    return result


def make_plan(
    settings: UpSettings,
    model: Model,
    command: Sequence[str],
    environ: Mapping[str, str],
    document: Document,
    machine: Machine,
) -> Plan:
    """Raises ConfigurationError when the router or a worker would refuse its settings. Nothing is started here."""
    drain_s = settings.stop_timeout_s / 2  # the rest is for what comes after: withdraw, close, exit
    flags: dict[str, Any] = {"host": settings.host, "port": settings.port, "drain_timeout_s": drain_s}
    router = _child("router", "router", flags, command, environ, document)
    roles = ["prefill"] * settings.prefill + ["decode"] * settings.decode
    workers = []
    for index, role in enumerate(roles):
        number = index + 1 if role == "prefill" else index + 1 - settings.prefill
        flags = {"role": role, "model": model.place, "port": 0, "internal_port": 0, "drain_timeout_s": drain_s}
        if model.name is not None:
            flags["served_model_name"] = model.name
        shares, extra = _shares(settings, environ, document, machine, index, len(roles))
        workers.append(_child(f"{role}-{number}", "worker", flags | shares, command, {**environ, **extra}, document))
    return Plan(router, decode=tuple(workers[settings.prefill :]), prefill=tuple(workers[: settings.prefill]))


def _child(
    name: str,
    section: str,
    flags: Mapping[str, Any],
    command: Sequence[str],
    environ: Mapping[str, str],
    document: Document,
) -> ChildSpec:
    load(settings_model(section), flags, environ, document)
    argv = [part for key, value in flags.items() for part in (flag(key), str(value))]
    return ChildSpec(name, (*command, section, *argv), environ)


def _shares(
    settings: UpSettings,
    environ: Mapping[str, str],
    document: Document,
    machine: Machine,
    index: int,
    num_workers: int,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Flags and variables that give a worker its part of the machine, as far as nobody has set them."""
    given = gather(settings_model("worker"), environ, document)
    flags: dict[str, Any] = {}
    if settings.threads_per_worker is not None:
        flags["torch_threads"] = settings.threads_per_worker
    elif "torch_threads" not in given and "OMP_NUM_THREADS" not in environ:
        flags["torch_threads"] = max(1, machine.num_cpus // num_workers)
    device = given.get("device", "auto")
    if not machine.gpus or device == "cpu":
        return flags, {}
    if "gpu_memory_fraction" not in given:
        sharing = -(-num_workers // len(machine.gpus)) if device in ("auto", "cuda") else num_workers
        flags["gpu_memory_fraction"] = round(GPU_MEMORY_FRACTION / sharing, 4)
    if device not in ("auto", "cuda"):
        return flags, {}
    return flags, {"CUDA_VISIBLE_DEVICES": machine.gpus[index % len(machine.gpus)]}
