"""What a vLLM server is started with."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from baton_serve.baton.processes.vllm.connectors import BATON, STOCK, Connector
from baton_serve.baton.processes.vllm.extra_args import OURS, ExtraArgs
from baton_serve.baton.processes.vllm.launcher import Launch
from baton_serve.baton.processes.vllm.program import VllmProgram
from baton_serve.baton.processes.vllm.server import ServerPlace, ServerShare, VllmModel, server_spec

GPU = VllmProgram(("vllm", "serve"), "0.32.0", on_cpu=False)
CPU = VllmProgram(("python", "-m", "server"), "0.32.0", on_cpu=True, model_flag=("--model",))
PLACE = ServerPlace(port=4000, side_channel_port=5600, handshake_port=6600)


def started(
    program: VllmProgram = GPU,
    role: str = "prefill",
    share: ServerShare | None = None,
    extra: str = "",
    environ: dict[str, str] | None = None,
    connector: Connector = STOCK,
    *,
    announces: bool = False,
    api_key: str = "",
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The server's arguments and environment."""
    model = VllmModel("/m", 30, "m", ExtraArgs(extra), connector, announces, api_key)
    spec = server_spec(f"{role}-1", role, program, model, PLACE, share or ServerShare(), environ or {})
    launch = msgspec.json.decode(spec.argv[-1], type=Launch)
    assert launch.url == "http://127.0.0.1:4000"
    return launch.argv, dict(spec.environ)


def kv_config(argv: tuple[str, ...]) -> dict[str, Any]:
    return dict(json.loads(argv[argv.index("--kv-transfer-config") + 1]))


def test_a_server_on_a_gpu() -> None:
    argv, environ = started(
        share=ServerShare(tp=2, threads=4, gpu_memory=0.45, environ={"CUDA_VISIBLE_DEVICES": "2,3"})
    )
    assert argv[:7] == ("vllm", "serve", "/m", "--host", "127.0.0.1", "--port", "4000")
    assert argv[9:] == ("--served-model-name", "m", "--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.45")
    assert kv_config(argv) == {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"kv_lease_duration": 30},
    }
    assert environ == {
        "UCX_NET_DEVICES": "lo",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.parametrize("extra", [{}, {"fence": False}])
def test_a_server_with_batons_connector(extra: dict[str, bool]) -> None:
    argv, _ = started(connector=Connector(BATON.name, BATON.module, extra))
    assert kv_config(argv) == {
        "kv_connector": "BatonConnector",
        "kv_connector_module_path": "baton_serve.workers.vllm.connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"kv_lease_duration": 30, **extra},
    }


def test_a_server_on_a_cpu() -> None:
    argv, environ = started(CPU, "decode", ServerShare(threads=3, cpu_cache_gib=2))
    assert argv[:5] == ("python", "-m", "server", "--model", "/m")
    assert argv[-3:] == ("--dtype", "float32", "--enforce-eager")
    assert (kv_config(argv)["kv_role"], kv_config(argv)["kv_buffer_device"]) == ("kv_consumer", "cpu")
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_what_is_set_already_stays_and_secrets_do_not_pass() -> None:
    given = {"VLLM_CPU_KVCACHE_SPACE": "9", "OMP_NUM_THREADS": "7", "UCX_NET_DEVICES": "eth0"}
    _, environ = started(CPU, environ={**given, "BATON_INTERNAL_TOKEN": "sesame", "VLLM_API_KEY": "sesame"})
    assert given.items() <= environ.items()
    assert "sesame" not in str(environ)


def test_its_own_key_is_in_the_environment_and_not_among_the_arguments() -> None:
    argv, environ = started(environ={"VLLM_API_KEY": "sesame", "BATON_VLLM_API_KEYS": "own"}, api_key="own")
    assert environ["VLLM_API_KEY"] == "own"
    assert [name for name, value in environ.items() if "own" in value] == ["VLLM_API_KEY"]
    assert "own" not in argv


def test_a_server_that_announces_itself_has_its_own_url() -> None:
    given = {"BATON_ANNOUNCE_URL": "http://one.for.all:1"}
    _, environ = started(connector=BATON, environ=given, announces=True)
    assert environ["BATON_ANNOUNCE_URL"] == PLACE.url
    _, environ = started(connector=BATON, environ=given)
    assert "BATON_ANNOUNCE_URL" not in environ


def test_batons_connector_is_given_what_it_needs_and_no_other_secret() -> None:
    needed = {"BATON_REDIS_URL": "redis://r", "BATON_REDIS_PASSWORD": "open", "BATON_INTERNAL_TOKEN": "inner"}
    given = {**needed, "BATON_ADMIN_TOKEN": "sesame", "BATON_API_KEYS": "sesame"}
    _, environ = started(connector=BATON, environ=given)
    assert needed.items() <= environ.items()
    assert "sesame" not in str(environ)
    _, environ = started(environ=given)
    assert not [name for name in environ if name.startswith("BATON_")]


def test_what_would_be_for_one_server_is_given_to_none() -> None:
    """All would answer handshakes on the same port, and the router would ask side channels that are closed."""
    given = {"BATON_INTERNAL_TOKEN": "inner", "BATON_HANDSHAKE_PORT": "7000", "BATON_SIDE_CHANNEL": "closed"}
    _, environ = started(connector=BATON, environ=given)
    batons = {name: value for name, value in environ.items() if name.startswith("BATON_")}
    assert batons == {"BATON_INTERNAL_TOKEN": "inner", "BATON_HANDSHAKE_PORT": str(PLACE.handshake_port)}


def test_what_people_pass_on_comes_last() -> None:
    argv, _ = started(CPU, extra="--dtype bfloat16 --chat-template 'a b.jinja'")
    assert argv[-4:] == ("--dtype", "bfloat16", "--chat-template", "a b.jinja")


@pytest.mark.parametrize("name", OURS)
def test_what_baton_gives_itself_is_refused_by_name(name: str) -> None:
    for text in (f"{name} 3", f"--seed 1 {name}=3", f"{name.replace('-', '_').replace('__', '--', 1)} 3"):
        if text.startswith("_"):  # a short flag has no underscore
            continue
        with pytest.raises(ValueError, match=rf"^{name} is not passed on: "):
            ExtraArgs(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("--kv-transfer-config.kv_connector_extra_config.kv_lease_duration 10", "--kv-transfer-config"),
        ("--kv_transfer_config.kv_role=kv_both", "--kv-transfer-config"),
        ("--kv-transfer-conf.kv_role kv_both", "--kv-transfer-config"),
        ("--kv.kv_role kv_both", "--kv-transfer-config"),
        ("--tensor-parallel 2", "--tensor-parallel-size"),
        ("--config vllm.yaml", "--config"),
    ],
)
def test_what_vllm_reads_as_one_of_them_is_refused(text: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is not passed on: "):
        ExtraArgs(text)


def test_what_only_begins_like_one_of_them_is_passed_on() -> None:
    text = "--model-impl vllm --api-server-count 1 --compilation-config.level 3 -tpx --speculative-config.model /m -- -"
    assert ExtraArgs(text).argv == tuple(text.split())


@pytest.mark.parametrize("text", ["--seed 'one", "serve --seed 1"])
def test_what_are_no_arguments(text: str) -> None:
    with pytest.raises(ValueError, match="arguments"):
        ExtraArgs(text)


def test_what_the_router_has_to_know_of_the_arguments() -> None:
    assert (ExtraArgs("").num_engines, ExtraArgs("").max_num_seqs) == (1, None)
    extra = ExtraArgs("--data_parallel_size=2 --max-num-seqs 8 --max-num-seqs 16")
    assert (extra.num_engines, extra.max_num_seqs) == (2, 16)
    assert ExtraArgs("-dp 4").num_engines == 4
    assert PLACE.router_address() == "vllm+http://127.0.0.1:4000?side_channel=5600"
    assert PLACE.router_address(16) == "vllm+http://127.0.0.1:4000?side_channel=5600&max_num_seqs=16"
