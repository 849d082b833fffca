"""What ``baton up`` does differently for the engines it can start: one class for each, behind one port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from baton_serve.baton.config.configuration import Document, gather
from baton_serve.baton.config.sections import settings_model
from baton_serve.baton.processes.vllm.extra_args import ExtraArgs
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.processes.vllm.program import VllmError, VllmProgram, find_vllm
from baton_serve.baton.processes.vllm.server import API_KEY
from baton_serve.baton.settings import UpSettings
from baton_serve.baton.up.machine_shares import Machine
from baton_serve.baton.up.plan import ProcessPlan, ServedModel, make_plan
from baton_serve.baton.up.preflight import PreflightError, check_worker_packages
from baton_serve.baton.up.vllm_plan import VllmServers, connector_of, make_vllm_plan, take_places
from baton_serve.core.protocol.vllm_keys import VllmKeys
from baton_serve.router.settings import RouterSettings


@dataclass(frozen=True)
class PlanInputs:
    """What a plan is made of, whatever the engine."""

    settings: UpSettings
    router: RouterSettings
    model: ServedModel
    command: Sequence[str]
    environ: Mapping[str, str]
    document: Document
    machine: Machine
    #: Empty: no Redis.
    redis_url: str


class Engine(Protocol):
    """The engine of all workers of one ``baton up``."""

    #: Whether ``baton scale`` can add workers to those that run, and remove some.
    scales: bool
    #: What a prefill worker and a decode worker are called on the screen.
    names: tuple[str, str]

    def needs_redis(self, router: RouterSettings) -> bool:
        """Whether a Redis has to be there."""

    def revision(self, environ: Mapping[str, str], document: Document) -> str | None:
        """The revision of the model, where one was given."""

    def named(self, model: ServedModel, is_folder: bool) -> ServedModel:
        """The model as workers are given it."""

    def plan(self, inputs: PlanInputs) -> ProcessPlan:
        """What is started. Raises ConfigurationError or PreflightError."""


class OwnWorkers:
    """Baton's own workers. Raises PreflightError when packages that they need are not installed."""

    scales = True
    names = ("prefill worker", "decode worker")

    def __init__(self) -> None:
        check_worker_packages()

    def needs_redis(self, router: RouterSettings) -> bool:
        """They announce themselves there, and leases live there."""
        return True

    def revision(self, environ: Mapping[str, str], document: Document) -> str | None:
        """That of the worker section."""
        return gather(settings_model("worker"), environ, document).get("revision")

    def named(self, model: ServedModel, is_folder: bool) -> ServedModel:
        """As it is: workers choose the name."""
        return model

    def plan(self, inputs: PlanInputs) -> ProcessPlan:
        """Redis is in the environment, since its URL may hold a password."""
        return make_plan(inputs.settings, inputs.model, inputs.command, inputs.environ, inputs.document, inputs.machine)


class VllmEngine:
    """vLLM servers. Raises PreflightError when vLLM cannot be used, or there are no ports for the servers."""

    #: The router is told of the servers when it starts.
    scales = False

    def __init__(self, settings: UpSettings, environ: Mapping[str, str], ports: HeldPorts) -> None:
        if environ.get(API_KEY):
            raise PreflightError(
                f"{API_KEY} is set: use BATON_VLLM_API_KEYS, which the router and its vLLM servers are told, and "
                "BATON_API_KEYS for clients"
            )
        self._settings = settings
        self._program = _find(settings)
        self._extra = _extra_args(settings)
        self._places = take_places(settings, self._extra, ports)
        name = f"vLLM {self._program.version}"
        self.names = (f"{name} prefill server", f"{name} decode server")

    def needs_redis(self, router: RouterSettings) -> bool:
        """Baton's connector has its leases there. Stock vLLM has no use for Redis, and one router process keeps its
        leases. Several learn of each other there: which of them live, who has sent how much to which server, and whom
        to clean up after.
        """
        return router.processes > 1 or not self._settings.stock

    def revision(self, environ: Mapping[str, str], document: Document) -> str | None:
        """Only vLLM knows, from its own arguments."""
        return None

    def named(self, model: ServedModel, is_folder: bool) -> ServedModel:
        """A folder is served under its name, as our workers do, and not under its path, as vLLM would."""
        if not is_folder:
            return model
        folder = Path(model.place).expanduser().absolute()
        return replace(model, place=str(folder), name=model.name or folder.name)

    def plan(self, inputs: PlanInputs) -> ProcessPlan:
        """The router gets the servers' addresses, and they its setting for leases."""
        lease_duration_s = inputs.router.vllm_lease_duration_s
        key = VllmKeys(inputs.router.vllm_api_keys).of_all
        return make_vllm_plan(
            inputs.settings,
            inputs.model,
            VllmServers(self._program, self._extra, self._places, lease_duration_s, key),
            inputs.command,
            inputs.environ,
            inputs.document,
            inputs.machine,
            inputs.redis_url,
        )


def choose_engine(settings: UpSettings, environ: Mapping[str, str], ports: HeldPorts) -> Engine:
    """The engine of the settings. Raises PreflightError when it cannot be used."""
    return VllmEngine(settings, environ, ports) if settings.engine == "vllm" else OwnWorkers()


def _extra_args(settings: UpSettings) -> ExtraArgs:
    length = settings.max_model_len
    return ExtraArgs(settings.vllm_args + ("" if length is None else f" --max-model-len {length}"))


def _find(settings: UpSettings) -> VllmProgram:
    try:
        program = find_vllm(settings.vllm)
        program.check_connector(connector_of(settings))
        return program
    except VllmError as error:
        raise PreflightError(str(error)) from None
