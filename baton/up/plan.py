"""Decides which processes ``baton up`` starts, with which flags and environment. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from baton_serve.baton.config.configuration import FILE_SUFFIX, Document, flag, gather, load, variable
from baton_serve.baton.config.sections import settings_model
from baton_serve.baton.processes.child import ChildSpec
from baton_serve.baton.settings import UpSettings
from baton_serve.baton.up.machine_shares import MAX_CPU_CACHE_BYTES, Machine, share_out
from baton_serve.core.process.child_secrets import Kind, environ_for
from baton_serve.core.protocol.status import Ready
from baton_serve.workers.settings import WorkerSettings

#: Indexes in ``ProcessPlan.stages``.
DECODE_STAGE, PREFILL_STAGE = 1, 2
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class ProcessPlan:
    """What is started. ``stages`` is the order in which it is stopped."""

    router: ChildSpec
    decode: tuple[ChildSpec, ...]
    prefill: tuple[ChildSpec, ...]

    @property
    def stages(self) -> tuple[tuple[ChildSpec, ...], ...]:
        """The router first, so that nothing new arrives; then the readers; last those whose blocks they read."""
        return ((self.router,), self.decode, self.prefill)


@dataclass(frozen=True)
class ServedModel:
    """What is served: a folder or hub id, and the name for clients.

    A ``name`` of None leaves the choice to the workers.
    """

    place: str
    name: str | None = None
    #: The most that a worker on CPUs takes for its cache, where no setting says.
    max_cache_bytes: int = MAX_CPU_CACHE_BYTES


def choose_model(
    settings: UpSettings, environ: Mapping[str, str], document: Document, demo: ServedModel
) -> ServedModel:
    """The model of ``--model``, else that of the worker section, else the demo. A name that was given is kept."""
    if settings.model is not None:
        return ServedModel(settings.model)
    given = gather(settings_model("worker"), environ, document)
    if "model" in given:
        return ServedModel(str(given["model"]))
    return ServedModel(demo.place) if "served_model_name" in given else demo


def child_environ(environ: Mapping[str, str], **secrets: str) -> dict[str, str]:
    """The environment with these settings added.

    Secrets are passed in the environment and never on a command line, where ``ps`` shows them to every user of the
    machine.
    """
    result = dict(environ)
    for name, value in secrets.items():
        key = variable("up", name)
        result.pop(key + FILE_SUFFIX, None)
        result[key] = value
    result["PYTHONUNBUFFERED"] = "1"
    return result


def with_client_keys(settings: UpSettings, environ: Mapping[str, str], document: Document) -> dict[str, str]:
    """The environment, with the keys of ``--api-keys`` in it for the router, which reads all other sources itself."""
    keys = [key.get_secret_value() for key in settings.api_keys]
    if keys == list(gather(UpSettings, environ, document).get("api_keys", ())):
        return dict(environ)
    return child_environ(environ, api_keys=",".join(keys))


def make_plan(
    settings: UpSettings,
    model: ServedModel,
    command: Sequence[str],
    environ: Mapping[str, str],
    document: Document,
    machine: Machine,
) -> ProcessPlan:
    """The plan. Raises ConfigurationError when the router or a worker would refuse its settings."""
    router = router_child(router_flags(settings), command, environ, document)
    common: dict[str, Any] = {"model": model.place, "port": 0, "internal_port": 0}
    common["drain_timeout_s"] = settings.drain_timeout_s
    if model.name is not None:
        common["served_model_name"] = model.name
    if settings.generation_config is not None:
        common["generation_config"] = settings.generation_config
    if settings.lora:
        common["lora"] = ",".join(settings.lora)
    if settings.max_model_len is not None:
        common["max_model_len"] = settings.max_model_len
    workers = {name: {"name": name, **own, **common} for name, own in worker_flags(settings)}
    loaded = [load(WorkerSettings, flags, environ, document) for flags in workers.values()]
    remedy = "lower --tp, --prefill-tp or --decode-tp, or set the workers' device to cpu"
    shares = share_out(loaded, machine, environ, settings.threads_per_worker, remedy, model.max_cache_bytes)
    children = tuple(
        _child(name, "worker", {**told, **share.flags}, command, {**environ, **share.environ}, document, drains=True)
        for (name, told), share in zip(workers.items(), shares, strict=True)
    )
    return ProcessPlan(router, decode=children[settings.prefill :], prefill=children[: settings.prefill])


def worker_flags(settings: UpSettings) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each worker, and the flags in which workers differ, whatever their engine; prefill workers first."""
    for role, num_workers, tp in (
        ("prefill", settings.prefill, settings.prefill_tp or settings.tp),
        ("decode", settings.decode, settings.decode_tp or settings.tp),
    ):
        flags: dict[str, Any] = {"role": role} if tp is None else {"role": role, "tp": tp}
        yield from ((f"{role}-{number}", flags) for number in range(1, num_workers + 1))


def router_flags(settings: UpSettings) -> dict[str, Any]:
    """The router's flags, whatever engine its workers are."""
    drain_s = settings.stop_timeout_s / 2  # the other half is for what comes after: withdraw, close, exit
    flags: dict[str, Any] = {"host": settings.host, "port": settings.port, "drain_timeout_s": drain_s}
    if settings.routers is not None:
        flags["processes"] = settings.routers
    return flags


def router_child(
    flags: Mapping[str, Any], command: Sequence[str], environ: Mapping[str, str], document: Document
) -> ChildSpec:
    """The spec of the router. Raises ConfigurationError when it would refuse its settings."""
    return _child("router", "router", flags, command, environ, document)


def with_missing_file(plan: ProcessPlan, path: Path) -> ProcessPlan:
    """The plan, with the path of the file of missing workers for the router."""
    router = replace(plan.router, argv=(*plan.router.argv, flag("missing_file"), str(path)))
    return replace(plan, router=router)


def with_known_port(spec: ChildSpec, ready: Ready) -> ChildSpec:
    """The spec for later starts of the router: if it was started with ``--port 0``, it keeps the port that the system
    chose first.
    """
    argv = list(spec.argv)
    place = argv.index(flag("port")) + 1 if flag("port") in argv else 0
    if not place or argv[place] != "0":
        return spec
    argv[place] = str(urlsplit(ready.url).port)
    return replace(spec, argv=tuple(argv))


def one_more(role: str, running: Sequence[ChildSpec], gpus: Sequence[str]) -> ChildSpec:
    """One more worker of a role: like the first of this role, on the GPUs with the fewest workers.

    It gets as many threads, and as large a part of a GPU's memory, as the others got at the start.
    """
    names = {spec.name for spec in running}
    name = next(name for number in count(1) if (name := f"{role}-{number}") not in names)
    first = next(spec for spec in running if spec.name.startswith(f"{role}-"))
    wanted = first.environ.get(_GPUS, "").split(",")
    first = _with_name(first, name)
    if not set(wanted) <= set(gpus):
        return first
    crowd = Counter(gpu for spec in running for gpu in spec.environ.get(_GPUS, "").split(","))
    chosen = sorted(gpus, key=lambda gpu: crowd[gpu])[: len(wanted)]
    return replace(first, environ={**first.environ, _GPUS: ",".join(chosen)})


def _with_name(spec: ChildSpec, name: str) -> ChildSpec:
    argv = list(spec.argv)
    argv[argv.index(flag("name")) + 1] = name
    return replace(spec, name=name, argv=tuple(argv))


def _child(
    name: str,
    section: Kind,
    flags: Mapping[str, Any],
    command: Sequence[str],
    environ: Mapping[str, str],
    document: Document,
    drains: bool = False,
) -> ChildSpec:
    environ = environ_for(section, environ)
    load(settings_model(section), flags, environ, document)
    argv = [part for key, value in flags.items() for part in (flag(key), str(value))]
    return ChildSpec(name, (*command, section, *argv), environ, drains)
