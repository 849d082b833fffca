"""``baton up --engine vllm`` with real processes, and a vLLM that computes nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from baton_serve.baton.cli import main
from baton_serve.baton.cluster.process import command_line
from baton_serve.baton.config.configuration import Document
from baton_serve.baton.processes.vllm.extra_args import ExtraArgs
from baton_serve.baton.processes.vllm.program import VllmProgram
from baton_serve.baton.processes.vllm.server import ServerPlace
from baton_serve.baton.settings import UpSettings
from baton_serve.baton.up.machine_shares import Machine
from baton_serve.baton.up.plan import ProcessPlan, ServedModel, child_environ
from baton_serve.baton.up.preflight import PreflightError
from baton_serve.baton.up.vllm_plan import VllmServers, make_vllm_plan
from tests.kits.baton.up_process import StartUp, UpProcess


class Vllm:
    """Starts ``baton up`` with fake servers, and knows what they were started with."""

    def __init__(self, start_up: StartUp, model_dir: str, environment: Path, folder: Path) -> None:
        self.folder = folder
        self._start_up = start_up
        self.flags = ("--engine", "vllm", "--vllm", str(environment), "--model", model_dir, "--port", "0")

    def up(self, *flags: str, **environ: str) -> UpProcess:
        return self._start_up(*self.flags, *flags, FAKE_VLLM_DIR=str(self.folder), **environ)

    def noted(self, role: str) -> list[dict[str, Any]]:
        """What the servers of a role have noted, the first start first."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob(f"{role}-*.json"))]


@pytest.fixture
def vllm(start_up: StartUp, model_dir: str, vllm_environment: Path, tmp_path: Path) -> Vllm:
    folder = tmp_path / "noted"
    folder.mkdir()
    return Vllm(start_up, model_dir, vllm_environment, folder)


def test_it_serves_and_stops_in_order(vllm: Vllm) -> None:
    environ = {"BATON_ADMIN_TOKEN": "sesame", "BATON_UP_VLLM_ARGS": "--seed 5"}
    up = vllm.up("--decode", "2", "--max-model-len", "77", "--", "--max-num-seqs", "8", **environ)
    screen = up.until_ready()
    assert "with 1 vLLM 0.32.0 prefill server and 2 vLLM 0.32.0 decode servers\n" in screen
    assert "loading the weights (50%)" in screen
    assert " scale " not in screen
    assert sorted(path.stem for path in up.log_dir.glob("*.log")) == [
        "decode-1",
        "decode-2",
        "prefill-1",
        "redis",
        "router",
    ]
    servers = [*vllm.noted("prefill"), *vllm.noted("decode")]
    addresses = [
        f"vllm+http://127.0.0.1:{_flag(server, '--port')}?side_channel="
        f"{server['environ']['VLLM_NIXL_SIDE_CHANNEL_PORT']}&max_num_seqs=8&name="
        for server in servers
    ]
    router = up.pids()[up.pid_of("router --host")]
    assert f"--prefill {addresses[0]}prefill-1 --decode " in router
    assert all(address in router for address in addresses)
    assert all(router.count(f"&name={name}") == 1 for name in ("decode-1", "decode-2"))
    assert len(set(addresses)) == 3
    assert [_flag(server, "--max-model-len") for server in servers] == ["77"] * 3
    assert [_flag(server, "--seed") for server in servers] == ["5"] * 3
    assert "sesame" not in json.dumps(servers)
    assert all(server["environ"]["BATON_REDIS_URL"] for server in servers)
    urls = [server["environ"]["BATON_ANNOUNCE_URL"] for server in servers]
    assert urls == [f"http://127.0.0.1:{_flag(server, '--port')}" for server in servers]
    assert len({server["environ"]["BATON_INTERNAL_TOKEN"] for server in servers}) == 1
    assert {_connector(server) for server in servers} == {"BatonConnector"}
    up.stop_well()
    assert up.stopped() == ["router", "decode", "decode", "prefill"]


def test_stock_servers_behind_one_router_need_no_redis(vllm: Vllm) -> None:
    up = vllm.up("--stock")
    up.until_ready()
    assert not list(up.log_dir.glob("redis*"))
    servers = [*vllm.noted("prefill"), *vllm.noted("decode")]
    assert {_connector(server) for server in servers} == {"NixlConnector"}
    assert not [name for server in servers for name in server["environ"] if name.startswith("BATON_")]
    up.stop_well()


@pytest.mark.slow
def test_a_server_that_dies_is_started_again_at_its_place(vllm: Vllm) -> None:
    up = vllm.up()
    up.until_ready()
    (first,) = vllm.noted("decode")
    os.kill(first["pid"], signal.SIGKILL)
    assert "decode-1: vLLM was ended by SIGKILL; starting it again" in up.until_line("decode-1")
    assert up.until_line("decode-1") == "decode-1: serves again\n"
    assert not command_line(first["engine"])
    _, second = vllm.noted("decode")
    assert second["argv"] == first["argv"]
    up.stop_well()


@pytest.mark.slow
def test_several_routers_get_a_redis(vllm: Vllm) -> None:
    up = vllm.up("--routers", "2")
    up.until_ready()
    assert up.pid_of("redis-server")
    up.stop_well()


@pytest.mark.parametrize(
    ("flags", "code", "error"),
    [
        (("--vllm", "/nowhere"), 1, "there is no /nowhere; --vllm is a vllm script, a Python, or the folder of an env"),
        (("--model", "/nowhere"), 1, "there is no model at /nowhere"),
        (("--", "--port", "9000"), 2, "--vllm-args: --port is not passed on: each server gets a port of its own"),
        (("--engine", "baton"), 2, "vllm, vllm_args and stock need engine=vllm"),
        (("--lora", "a=/a"), 2, "lora is for Baton's own engine"),
        (("--generation-config", "none"), 2, "generation_config is for Baton's own engine"),
        (("serve",), 2, "Got unexpected extra argument (serve)"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_starts(
    vllm: Vllm,
    flags: tuple[str, ...],
    code: int,
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_VLLM_DIR", str(vllm.folder))
    assert main(["up", *vllm.flags, *flags]) == code
    errors = capsys.readouterr().err
    assert errors.startswith(f"baton: {error}")
    assert errors.count("\n") == 1
    assert list(vllm.folder.iterdir()) == []


def _connector(server: dict[str, Any]) -> str:
    return str(json.loads(_flag(server, "--kv-transfer-config"))["kv_connector"])


def _flag(server: dict[str, Any], name: str) -> str:
    return str(server["argv"][server["argv"].index(name) + 1])


GPU = VllmProgram(("vllm", "serve"), "0.32.0", on_cpu=False)
CPU = VllmProgram(("vllm", "serve"), "0.32.0", on_cpu=True)


def plan(program: VllmProgram, machine: Machine, redis_url: str = "", **settings: Any) -> ProcessPlan:
    chosen = UpSettings(engine="vllm", **settings)
    places = tuple(ServerPlace(4000 + n, 5600 + n, 6600 + n) for n in range(chosen.prefill + chosen.decode))
    servers = VllmServers(program, ExtraArgs(chosen.vllm_args), places, 30)
    environ = child_environ({}, redis_url=redis_url, internal_token="token")
    model = ServedModel("/models/m")
    return make_vllm_plan(chosen, model, servers, ("baton",), environ, Document(), machine, redis_url)


def test_gpus_and_their_memory_are_shared() -> None:
    made = plan(GPU, Machine(8, ("0", "1", "2")), prefill_tp=2)
    assert [spec.environ["CUDA_VISIBLE_DEVICES"] for spec in (*made.prefill, *made.decode)] == ["0,1", "2"]
    assert '"--tensor-parallel-size","2"' in made.prefill[0].argv[-1]
    assert "--gpu-memory-utilization" not in made.prefill[0].argv[-1]
    assert '"--gpu-memory-utilization","0.45"' in plan(GPU, Machine(8, ("0",))).decode[0].argv[-1]
    with pytest.raises(
        PreflightError, match="a worker of 2 ranks needs 2 GPUs, and there are 1: lower --tp, --prefill-"
    ):
        plan(GPU, Machine(8, ("0",)), prefill_tp=2)


def test_threads_and_memory_are_shared_on_cpus() -> None:
    made = plan(CPU, Machine(8, ("0",), memory_bytes=64 * 2**30), decode=3, prefill_tp=2)
    for spec, threads in ((made.prefill[0], "1"), (made.decode[0], "1")):
        assert "CUDA_VISIBLE_DEVICES" not in spec.environ
        assert (spec.environ["OMP_NUM_THREADS"], spec.environ["VLLM_CPU_KVCACHE_SPACE"]) == (threads, "4")
    assert plan(CPU, Machine(2, (), 2**30)).decode[0].environ["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_a_router_without_redis_is_told_so() -> None:
    argv = plan(CPU, Machine(8)).router.argv
    assert argv[argv.index("--redis-url") + 1] == ""
    assert "--redis-url" not in plan(CPU, Machine(8), "redis://somewhere", routers=2).router.argv
