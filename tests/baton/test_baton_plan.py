"""What ``baton up`` would start."""

from __future__ import annotations

from typing import Any

import pytest

from baton.configuration import ConfigurationError, Document
from baton.plan import Machine, Model, Plan, child_environ, choose_model, make_plan
from baton.settings import UpSettings

CPU = Machine(num_cpus=8)


def plan(
    machine: Machine = CPU,
    environ: dict[str, str] | None = None,
    worker: dict[str, Any] | None = None,
    **settings: Any,
) -> Plan:
    document = Document("baton.yaml", {"worker": worker or {}})
    environ = child_environ(environ or {}, "redis://somewhere", "token")
    return make_plan(UpSettings(**settings), Model("/models/m"), ("baton",), environ, document, machine)


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(argv[2::2], argv[3::2], strict=True))


def test_names_and_the_order_of_stopping() -> None:
    stages = plan(prefill=2, decode=3).stages
    names = [[spec.name for spec in stage] for stage in stages]
    assert names == [["router"], ["decode-1", "decode-2", "decode-3"], ["prefill-1", "prefill-2"]]


def test_flags_of_router_and_workers() -> None:
    made = plan(port=9000, stop_timeout_s=8.0)
    assert made.router.argv == (
        *("baton", "router", "--host", "127.0.0.1", "--port", "9000", "--drain-timeout-s", "4.0"),
    )
    shown = flags(made.decode[0].argv)
    assert made.decode[0].argv[:2] == ("baton", "worker")
    assert (shown["--role"], shown["--model"], shown["--port"], shown["--internal-port"]) == (
        *("decode", "/models/m", "0", "0"),
    )


def test_secrets_are_in_the_environment_only() -> None:
    made = plan(environ={"BATON_INTERNAL_TOKEN_FILE": "/run/secrets/old"})
    assert made.router.environ["BATON_INTERNAL_TOKEN"] == "token"
    assert "BATON_INTERNAL_TOKEN_FILE" not in made.router.environ
    assert "token" not in " ".join(made.router.argv).split()
    assert "redis://somewhere" not in made.prefill[0].argv


def test_cpu_threads_are_shared() -> None:
    assert flags(plan(prefill=2, decode=1).prefill[0].argv)["--torch-threads"] == "2"
    assert flags(plan(machine=Machine(1)).prefill[0].argv)["--torch-threads"] == "1"
    assert flags(plan(threads_per_worker=5).prefill[0].argv)["--torch-threads"] == "5"
    assert "--torch-threads" not in flags(plan(worker={"torch_threads": 3}).prefill[0].argv)
    assert "--torch-threads" not in flags(plan(environ={"OMP_NUM_THREADS": "1"}).prefill[0].argv)


def test_gpus_are_dealt_out_and_their_memory_shared() -> None:
    made = plan(machine=Machine(8, ("3", "5")), prefill=1, decode=2)
    assert [spec.environ["CUDA_VISIBLE_DEVICES"] for spec in (*made.prefill, *made.decode)] == ["3", "5", "3"]
    assert flags(made.prefill[0].argv)["--gpu-memory-fraction"] == "0.45"
    alone = plan(machine=Machine(8, ("0", "1"))).prefill[0]
    assert flags(alone.argv)["--gpu-memory-fraction"] == "0.9"


def test_a_device_that_was_chosen_stays() -> None:
    made = plan(machine=Machine(8, ("0", "1")), worker={"device": "cpu"})
    assert "CUDA_VISIBLE_DEVICES" not in made.prefill[0].environ
    made = plan(machine=Machine(8, ("0", "1")), worker={"device": "cuda:1", "gpu_memory_fraction": 0.3})
    assert "CUDA_VISIBLE_DEVICES" not in made.prefill[0].environ
    assert "--gpu-memory-fraction" not in flags(made.prefill[0].argv)


def test_which_model() -> None:
    demo = Model("demo", "baton-demo")
    document = Document("baton.yaml", {"worker": {"model": "from-file"}})
    assert choose_model(UpSettings(model="given"), {}, document, demo) == Model("given")
    assert choose_model(UpSettings(), {"BATON_WORKER_MODEL": "from-env"}, document, demo) == Model("from-env")
    assert choose_model(UpSettings(), {}, document, demo) == Model("from-file")
    assert choose_model(UpSettings(), {}, Document(), demo) == demo
    renamed = choose_model(UpSettings(), {"BATON_WORKER_SERVED_MODEL_NAME": "mine"}, Document(), demo)
    assert renamed == Model("demo")


def test_the_demo_has_a_name() -> None:
    made = make_plan(UpSettings(), Model("/d", "baton-demo"), ("baton",), {}, Document(), CPU)
    assert flags(made.decode[0].argv)["--served-model-name"] == "baton-demo"


def test_what_a_child_would_refuse_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match=r"baton\.yaml: unknown key 'worker.rolle'"):
        plan(worker={"rolle": "decode"})
    with pytest.raises(ConfigurationError, match="not a loopback address"):
        plan(host="0.0.0.0")
