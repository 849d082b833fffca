"""The command line and the environment of one vLLM server that prefills or decodes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from baton_serve.baton.processes.child import ChildSpec
from baton_serve.baton.processes.vllm.connectors import STOCK, Connector
from baton_serve.baton.processes.vllm.extra_args import ExtraArgs
from baton_serve.baton.processes.vllm.launcher import Launch
from baton_serve.baton.processes.vllm.program import VllmProgram
from baton_serve.core.net.sockets import base_url
from baton_serve.core.process.child_secrets import environ_for
from baton_serve.core.process.interpreter import python
from baton_serve.workers.vllm.settings import ConnectorSettings

LOOPBACK = "127.0.0.1"
#: ``kv_both`` is deprecated for NixlConnector.
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
#: vLLM's own key for clients, who are routers here. In ``argv`` other users of the machine would see it.
API_KEY = "VLLM_API_KEY"
#: The URL under which a server announces itself.
ANNOUNCE_URL = "BATON_ANNOUNCE_URL"
HANDSHAKE_PORT = "BATON_HANDSHAKE_PORT"
#: Settings of the connector for one server. All servers here are given their own, and keep their side channels, since
#: all are on loopback and the router is told of these.
OF_ONE_SERVER = frozenset({ANNOUNCE_URL, HANDSHAKE_PORT, "BATON_SIDE_CHANNEL"})
#: bfloat16, which models usually ask for, is an illegal instruction on some CPUs.
CPU_DTYPE = "float32"


@dataclass(frozen=True)
class ServerPlace:
    """Where one server listens. Each of its data-parallel ranks has a side channel, and with Baton's connector and a
    token a port for handshakes over HTTP: the ports of each kind are in a row, from the first one on.
    """

    port: int
    side_channel_port: int
    handshake_port: int

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return base_url(LOOPBACK, self.port)

    def router_address(self, max_num_seqs: int | None = None, name: str = "") -> str:
        """The address under which a router is told of it. ``max_num_seqs`` of None: vLLM's default."""
        limit = "" if max_num_seqs is None else f"&max_num_seqs={max_num_seqs}"
        return f"vllm+{self.url}?side_channel={self.side_channel_port}{limit}{name and f'&name={name}'}"


@dataclass(frozen=True)
class ServerShare:
    """One server's part of the machine."""

    tp: int = 1
    #: CPU threads of each rank; None: as the environment says.
    threads: int | None = None
    #: Part of each GPU's memory; None: vLLM's default, which is nearly all.
    gpu_memory: float | None = None
    #: GiB of memory for the KV cache of a server without GPU.
    cpu_cache_gib: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class VllmModel:
    """What all servers serve, and how."""

    place: str
    #: Seconds for which a prefill server keeps blocks that nobody has read; the routers must know the same.
    lease_duration_s: int
    #: Empty: the server chooses.
    name: str = ""
    extra: ExtraArgs = field(default_factory=lambda: ExtraArgs(""))
    connector: Connector = STOCK
    #: Whether the servers announce themselves in Redis, which takes Baton's connector.
    announces: bool = False
    #: Without it nobody is served; empty: everybody is.
    api_key: str = field(default="", repr=False)


def server_spec(
    name: str,
    role: str,
    program: VllmProgram,
    model: VllmModel,
    place: ServerPlace,
    share: ServerShare,
    environ: Mapping[str, str],
) -> ChildSpec:
    """The spec of one server. What people pass on comes last, so that it wins over the defaults for CPUs."""
    argv = (*program.command, *program.model_flag, model.place, *_flags(role, program, model, place, share))
    launch = Launch((*argv, *model.extra.argv), place.url)
    command = (*python("baton_serve.baton.processes.vllm.launcher"), msgspec.json.encode(launch).decode())
    return ChildSpec(name, command, _environ(program, model, place, share, environ))


def _flags(role: str, program: VllmProgram, model: VllmModel, place: ServerPlace, share: ServerShare) -> list[str]:
    flags = ["--host", LOOPBACK, "--port", str(place.port)]
    flags += ["--kv-transfer-config", json.dumps(_kv_transfer_config(role, program, model))]
    if model.name:
        flags += ["--served-model-name", model.name]
    if share.tp > 1:
        flags += ["--tensor-parallel-size", str(share.tp)]
    if program.on_cpu:  # there, compiling takes longer than it saves, and needs a C++ compiler
        return [*flags, "--dtype", CPU_DTYPE, "--enforce-eager"]
    if share.gpu_memory is not None:
        flags += ["--gpu-memory-utilization", str(share.gpu_memory)]
    return flags


def _kv_transfer_config(role: str, program: VllmProgram, model: VllmModel) -> dict[str, object]:
    connector = model.connector
    config: dict[str, object] = {"kv_connector": connector.name, "kv_role": KV_ROLES[role]}
    if connector.module:
        config["kv_connector_module_path"] = connector.module
    if program.on_cpu:
        config["kv_buffer_device"] = "cpu"
    return {**config, "kv_connector_extra_config": {"kv_lease_duration": model.lease_duration_s, **connector.extra}}


def _environ(
    program: VllmProgram, model: VllmModel, place: ServerPlace, share: ServerShare, environ: Mapping[str, str]
) -> dict[str, str]:
    """The server's environment: of Baton's settings, some of which are secret, it has those of its connector only."""
    needed = ConnectorSettings.variables() - OF_ONE_SERVER if model.connector.module else frozenset()
    defaults = {"UCX_NET_DEVICES": "lo"}  # the network of UCX; prefill and decode are on this machine
    if program.on_cpu:
        # By default each server would bind its threads to the same cores, and take most of the memory.
        defaults |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": str(share.cpu_cache_gib)}
        if share.threads is not None:
            defaults["OMP_NUM_THREADS"] = str(share.threads)
    inherited = {
        key: value
        for key, value in environ_for("vllm", environ).items()
        if key in needed or not key.startswith("BATON_")
    }
    side_channel = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": LOOPBACK,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(place.side_channel_port),
    }
    own = {HANDSHAKE_PORT: str(place.handshake_port)} if model.connector.module else {}
    if model.api_key:
        own[API_KEY] = model.api_key
    if model.announces:
        own[ANNOUNCE_URL] = place.url
    return {**defaults, **inherited, **share.environ, **side_channel, **own, "PYTHONUNBUFFERED": "1"}
