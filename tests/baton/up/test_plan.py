"""What ``baton up`` would start."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_serve.baton.config.configuration import ConfigurationError, Document, load
from baton_serve.baton.demo import CACHE_BYTES, MODEL_DIR
from baton_serve.baton.settings import UpSettings
from baton_serve.baton.up.machine_shares import Machine
from baton_serve.baton.up.plan import (
    ProcessPlan,
    ServedModel,
    child_environ,
    choose_model,
    make_plan,
    one_more,
    router_child,
    router_flags,
    with_client_keys,
    with_known_port,
)
from baton_serve.baton.up.preflight import PreflightError
from baton_serve.core.protocol.status import Ready
from baton_serve.router.settings import RouterSettings

CPU = Machine(num_cpus=8)


def plan(
    machine: Machine = CPU, environ: dict[str, str] | None = None, worker: dict[str, Any] | None = None, **settings: Any
) -> ProcessPlan:
    document = Document("baton.yaml", {"worker": worker or {}})
    environ = child_environ(environ or {}, redis_url="redis://somewhere", internal_token="token")
    return make_plan(UpSettings(**settings), ServedModel("/models/m"), ("baton",), environ, document, machine)


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(argv[2::2], argv[3::2], strict=True))


def of_workers(made: ProcessPlan, flag: str) -> list[str | None]:
    return [flags(spec.argv).get(flag) for spec in (*made.prefill, *made.decode)]


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


@pytest.mark.parametrize(
    ("settings", "flag", "given"),
    [
        ({"lora": ("a=/adapters/a", "b=/adapters/b")}, "--lora", "a=/adapters/a,b=/adapters/b"),
        ({"generation_config": "none"}, "--generation-config", "none"),
        ({"max_model_len": 77}, "--max-model-len", "77"),
        ({"tp": 2}, "--tp", "2"),
    ],
)
def test_all_workers_get_what_is_for_all(settings: dict[str, Any], flag: str, given: str) -> None:
    """Where it is in the file only, they read it themselves."""
    in_file = {"lora": ["c=/adapters/c"], "max_model_len": 78, "tp": 4, "generation_config": "auto"}
    made = plan(prefill=2, worker=in_file, **settings)
    assert of_workers(made, flag) == [given] * 3
    assert flag not in flags(made.router.argv)
    assert of_workers(plan(worker=in_file), flag) == of_workers(plan(), flag) == [None, None]


def test_the_number_of_routers_is_passed_on() -> None:
    assert "--processes" not in flags(plan().router.argv)
    assert flags(plan(routers=3).router.argv)["--processes"] == "3"


def test_wrong_adapters_are_found_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="--lora: there are two adapters named a"):
        plan(lora=("a=/a", "a=/b"))


def test_a_router_is_started_again_on_the_port_it_got() -> None:
    again = with_known_port(plan(port=0).router, Ready("http://127.0.0.1:4711"))
    assert flags(again.argv)["--port"] == "4711"
    assert with_known_port(plan(port=9000).router, Ready("http://127.0.0.1:9000")) == plan(port=9000).router


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


def test_each_role_may_have_ranks_of_its_own_number() -> None:
    assert of_workers(plan(prefill=2, prefill_tp=2, decode_tp=1), "--tp") == ["2", "2", "1"]
    assert of_workers(plan(tp=2, decode_tp=4), "--tp") == ["2", "4"]
    # Without a flag, a worker finds the number in its own section, or in the environment it inherits.
    assert of_workers(plan(worker={"tp": 2}, decode_tp=4), "--tp") == [None, "4"]
    made = plan(environ={"BATON_WORKER_TP": "2"})
    assert of_workers(made, "--tp") == [None, None]
    assert made.decode[0].environ["BATON_WORKER_TP"] == "2"


def test_keys_of_the_flag_reach_the_router_and_no_command_line() -> None:
    document = Document("baton.yaml", {"shared": {"api_keys": ["of-file"]}, "router": {"api_keys": ["of-router"]}})
    given = load(UpSettings, {"api_keys": "key-1,key-2"}, {}, document)
    environ = with_client_keys(given, {}, document)
    keys = load(RouterSettings, router_flags(given), environ, document).api_keys
    assert [key.get_secret_value() for key in keys] == ["key-1", "key-2"]
    assert not any("key-1" in part for part in router_child(router_flags(given), (), environ, document).argv)
    unset = load(UpSettings, {}, {}, document)
    keys = load(RouterSettings, {}, with_client_keys(unset, {}, document), document).api_keys
    assert [key.get_secret_value() for key in keys] == ["of-router"]


def test_caches_on_cpus_take_an_eighth_of_a_small_machine() -> None:
    small = Machine(2, memory_bytes=4 * 2**30)
    assert of_workers(plan(machine=small), "--kv-cache-bytes") == [str(2**28)] * 2
    for known in ({"num_blocks": 9}, {"kv_cache_bytes": 2**29}):
        assert "--kv-cache-bytes" not in flags(plan(machine=small, worker=known).decode[0].argv)
    for other in (Machine(2, memory_bytes=64 * 2**30), Machine(2, ("0", "1"), 4 * 2**30)):
        assert "--kv-cache-bytes" not in flags(plan(machine=other).decode[0].argv)


def test_the_demo_takes_little_memory() -> None:
    large, demo = Machine(8, memory_bytes=2**40), ServedModel("/d", "baton-demo", CACHE_BYTES)
    made = make_plan(UpSettings(), demo, ("baton",), {}, Document(), large)
    assert of_workers(made, "--kv-cache-bytes") == [str(CACHE_BYTES)] * 2
    assert of_workers(made, "--served-model-name") == ["baton-demo"] * 2
    config = json.loads((MODEL_DIR / "config.json").read_text())
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    token_bytes = 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim
    assert 8 * config["max_position_embeddings"] * token_bytes <= CACHE_BYTES


def test_a_number_of_ranks_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"baton\.yaml: worker\.tp"):
        plan(worker={"tp": 0})
    with pytest.raises(ConfigurationError, match="BATON_WORKER_TP"):
        plan(environ={"BATON_WORKER_TP": "two"})
    with pytest.raises(ConfigurationError, match=r"--decode-tp.*less than or equal to 64"):
        load(UpSettings, {"decode_tp": "65"}, {}, Document())


def test_every_rank_gets_the_same_threads() -> None:
    for made, threads in (
        (plan(prefill_tp=2, decode_tp=2), ["4", "4"]),
        (plan(prefill_tp=3, decode_tp=1), ["6", "2"]),
        (plan(environ={"BATON_WORKER_TP": "2"}, decode=3), ["2", "2", "2", "2"]),
        (plan(machine=Machine(1), prefill_tp=2), ["2", "1"]),  # one for each rank at least
        (plan(threads_per_worker=4, prefill_tp=2), ["4", "4"]),
    ):
        assert of_workers(made, "--torch-threads") == threads


def gpus(made: ProcessPlan) -> list[tuple[str, str]]:
    return [
        (spec.environ["CUDA_VISIBLE_DEVICES"], flags(spec.argv)["--gpu-memory-fraction"])
        for spec in (*made.prefill, *made.decode)
    ]


def test_every_rank_gets_a_gpu_of_its_own_while_there_are_some() -> None:
    four = Machine(8, ("0", "1", "2", "3"))
    assert gpus(plan(machine=four, prefill_tp=2, decode_tp=2)) == [("0,1", "0.9"), ("2,3", "0.9")]
    assert gpus(plan(machine=four, prefill_tp=2, decode_tp=1)) == [("0,1", "0.9"), ("2", "0.9")]
    assert gpus(plan(machine=four, prefill_tp=1, decode_tp=3)) == [("0", "0.9"), ("1,2,3", "0.9")]


def test_workers_share_what_is_not_enough_for_all() -> None:
    # A worker's fraction is that of its fullest GPU: all its ranks have equally many blocks.
    assert gpus(plan(machine=Machine(8, ("0", "1")), prefill_tp=2, decode=2)) == [
        *(("0,1", "0.45"), ("0", "0.45"), ("1", "0.45")),
    ]
    assert gpus(plan(machine=Machine(8, ("0", "1", "2")), prefill_tp=2, decode_tp=2)) == [
        *(("0,1", "0.45"), ("2,0", "0.45")),
    ]


def test_a_worker_of_more_ranks_than_gpus_is_refused() -> None:
    with pytest.raises(PreflightError, match=r"a worker of 2 ranks needs 2 GPUs, and there are 1: .*device to cpu$"):
        plan(machine=Machine(8, ("7",)), prefill_tp=2)
    on_cpus = plan(worker={"device": "cpu"}, machine=Machine(8, ("7",)), prefill_tp=2)
    assert all("CUDA_VISIBLE_DEVICES" not in spec.environ for spec in (*on_cpus.prefill, *on_cpus.decode))


def test_several_ranks_are_not_put_on_one_gpu() -> None:
    with pytest.raises(ConfigurationError, match="2 ranks need a GPU each, and device cuda:1 is one"):
        plan(machine=Machine(8, ("0", "1", "2", "3")), worker={"device": "cuda:1"}, prefill_tp=2)


def test_a_device_that_was_chosen_stays() -> None:
    made = plan(machine=Machine(8, ("0", "1")), worker={"device": "cpu"})
    assert "CUDA_VISIBLE_DEVICES" not in made.prefill[0].environ
    made = plan(machine=Machine(8, ("0", "1")), worker={"device": "cuda:1", "gpu_memory_fraction": 0.3})
    assert "CUDA_VISIBLE_DEVICES" not in made.prefill[0].environ
    assert "--gpu-memory-fraction" not in flags(made.prefill[0].argv)


def test_one_more_worker_is_as_the_others_of_its_role() -> None:
    made = plan(prefill=2, decode=1)
    running = [*made.prefill, *made.decode]
    assert of_workers(made, "--name") == [spec.name for spec in running] == ["prefill-1", "prefill-2", "decode-1"]
    more = one_more("decode", running, ())
    assert flags(more.argv)["--name"] == more.name
    assert (more.name, more.argv) == ("decode-2", plan(prefill=2, decode=2, threads_per_worker=2).decode[1].argv)
    assert one_more("prefill", [made.prefill[1], *made.decode], ()).name == "prefill-1"


def test_one_more_worker_gets_the_gpus_that_the_fewest_use() -> None:
    made = plan(machine=Machine(8, ("0", "1", "2", "3")), prefill_tp=2, decode_tp=1)
    running = [*made.prefill, *made.decode]
    third = one_more("decode", running, ("0", "1", "2", "3"))
    assert third.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert one_more("prefill", [*running, third], ("0", "1", "2", "3")).environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_which_model() -> None:
    demo = ServedModel("demo", "baton-demo")
    document = Document("baton.yaml", {"worker": {"model": "from-file"}})
    assert choose_model(UpSettings(model="given"), {}, document, demo) == ServedModel("given")
    assert choose_model(UpSettings(), {"BATON_WORKER_MODEL": "from-env"}, document, demo) == ServedModel("from-env")
    assert choose_model(UpSettings(), {}, document, demo) == ServedModel("from-file")
    assert choose_model(UpSettings(), {}, Document(), demo) == demo
    renamed = choose_model(UpSettings(), {"BATON_WORKER_SERVED_MODEL_NAME": "mine"}, Document(), demo)
    assert renamed == ServedModel("demo")


def test_what_a_child_would_refuse_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match=r"baton\.yaml: unknown key 'worker.rolle'"):
        plan(worker={"rolle": "decode"})
    with pytest.raises(ConfigurationError, match="not a loopback address"):
        plan(host="0.0.0.0")
