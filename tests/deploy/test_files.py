"""The files beside the code: the example configuration, compose and the tokens it makes, the pins."""

from __future__ import annotations

import json
import re
import runpy
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from baton_serve.baton.config.configuration import Document, load, variable
from baton_serve.baton.config.sections import MODELS, settings_model
from baton_serve.baton.config.sources import read_document
from baton_serve.core.process.settings import SECRET, SHARED
from baton_serve.router.settings import RouterSettings
from baton_serve.workers.settings import WorkerSettings
from deploy import stand_in_bases
from deploy.drill import doors

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def compose(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


SERVICES: dict[str, Any] = compose("docker-compose.yml")["services"]


def test_the_example_configuration_is_valid() -> None:
    document = read_document(str(ROOT / "deploy" / "baton.yaml"))
    for section in MODELS:
        load(settings_model(section), {"model": "m"} if section == "worker" else {}, {}, document)


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.gpu.yml", "docker-compose.vllm.yml"])
def test_compose_sets_only_variables_that_exist(name: str) -> None:
    known = {variable(section, field) for section in MODELS for field in settings_model(section).model_fields}
    known |= {f"BATON_{field.upper()}_FILE" for field in SECRET & SHARED}
    for service in compose(name)["services"].values():
        assert {key for key in service.get("environment", {}) if key.startswith("BATON_")} <= known


def filled(text: str, environ: dict[str, str]) -> str:
    """As compose reads it for whoever starts it with ``environ``."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: environ.get(match[1]) or match[2], text)


def filled_in(environment: dict[str, str], environ: dict[str, str]) -> dict[str, str]:
    return {name: filled(value, environ) for name, value in environment.items()}


def worker_settings(files: list[str], service: str, environ: dict[str, str]) -> WorkerSettings:
    """What a worker of these compose files is told, without what is in its image."""
    given = {"BATON_WORKER_HOST": "127.0.0.1"}
    for name in files:
        given |= filled_in(compose(name)["services"][service]["environment"], environ)
    return load(WorkerSettings, {}, {name.removesuffix("_FILE"): value for name, value in given.items()}, Document())


def test_compose_settings_are_accepted() -> None:
    for name, section in (("router", "router"), ("prefill", "worker"), ("decode", "worker")):
        given = {
            key.removesuffix("_FILE"): value for key, value in filled_in(SERVICES[name]["environment"], {}).items()
        }
        prefix = f"BATON_{section.upper()}_"
        settings = load(settings_model(section), {}, {**given, f"{prefix}HOST": "0.0.0.0"}, read_document(None))
        assert settings.model_dump()["host"] == "0.0.0.0"


@pytest.mark.parametrize("files", [["docker-compose.yml"], ["docker-compose.yml", "docker-compose.gpu.yml"]])
def test_compose_starts_workers_of_as_many_ranks_as_it_is_told(files: list[str]) -> None:
    assert [worker_settings(files, role, {}).tp for role in ("prefill", "decode")] == [1, 1]
    environ = {"BATON_PREFILL_TP": "2", "BATON_DECODE_TP": "4"}
    assert [worker_settings(files, role, environ).tp for role in ("prefill", "decode")] == [2, 4]


def test_compose_gives_each_worker_the_gpus_it_is_told() -> None:
    services = compose("docker-compose.gpu.yml")["services"]
    environ = {"BATON_PREFILL_GPUS": "0,1", "BATON_DECODE_GPUS": "2"}
    for role, expected in (("prefill", "0,1"), ("decode", "2")):
        environment = services[role]["environment"]
        assert filled_in(environment, environ)["CUDA_VISIBLE_DEVICES"] == expected
        # Empty would hide every GPU.
        assert filled_in(environment, {})["CUDA_VISIBLE_DEVICES"].startswith("0,1,")


def test_workers_on_gpus_can_compile_and_load_what_they_compiled() -> None:
    for service in compose("docker-compose.gpu.yml")["services"].values():
        assert service["build"]["target"] == "worker-gpu"
        assert any(mount.startswith("/home/baton/.triton:exec,") for mount in service["tmpfs"])
    (stage,) = re.findall(r"^FROM worker AS worker-gpu\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert " gcc " in stage
    assert re.findall(r"^USER (\w+)", stage, re.MULTILINE)[-1] == "baton"


def test_compose_publishes_on_loopback_only_and_no_worker() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "router": ["127.0.0.1:8000:8000"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_every_container_is_read_only_and_has_no_rights() -> None:
    for name, service in SERVICES.items():
        assert service.get("read_only") is True, name
        assert service["cap_drop"] == ["ALL"] and "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name


def test_no_override_gives_rights_back() -> None:
    for name, service in compose("docker-compose.gpu.yml")["services"].items():
        assert not {"read_only", "cap_add", "cap_drop", "security_opt", "privileged", "networks"} & set(service), name


#: Of each service the volume with its secrets, and what is in it.
SECRETS = {
    "router": ("router-tokens", {"internal-token", "admin-token", "api-keys", "redis-password"}),
    "prefill": ("worker-tokens", {"internal-token", "redis-password"}),
    "decode": ("worker-tokens", {"internal-token", "redis-password"}),
    "redis": ("redis-tokens", {"redis-password", "redis.conf"}),
}


def test_each_service_is_given_the_secrets_it_needs_and_no_other() -> None:
    made = dict(part.split("=") for part in SERVICES["tokens"]["command"])
    places = dict(volume.split(":")[:2] for volume in SERVICES["tokens"]["volumes"] if volume.endswith(tuple(made)))
    for name, service in SERVICES.items():
        if name == "tokens":
            continue
        volumes = [volume for volume in service.get("volumes", []) if volume.split(":")[0] in places]
        expected = [f"{SECRETS[name][0]}:/run/baton:ro"] if name in SECRETS else []
        assert volumes == expected, name
        if name in SECRETS:
            assert set(made[places[SECRETS[name][0]]].split(",")) == SECRETS[name][1]
            environment = filled_in(service.get("environment", {}), {})
            files = {value for key, value in environment.items() if key.endswith("_FILE") and value}
            assert files <= {f"/run/baton/{secret}" for secret in SECRETS[name][1]}, name


def test_the_drill_looks_for_the_same_secrets() -> None:
    assert {name: names for name, (_, names) in SECRETS.items()} == doors.SECRETS


def test_no_secret_is_in_the_environment_of_a_service() -> None:
    for name, service in SERVICES.items():
        environment = service.get("environment", {})
        if name != "tokens":  # which refuses it
            assert not {f"BATON_{each.upper()}" for each in SECRET - {"redis_url"}} & set(environment), name
        assert "@" not in environment.get("BATON_REDIS_URL", ""), name


def test_only_routers_and_workers_reach_redis() -> None:
    networks = {name: set(service.get("networks", [])) for name, service in SERVICES.items()}
    there = {name for name, joined in networks.items() if joined & networks["redis"]}
    assert there == {"redis", "router", "prefill", "decode"}
    assert networks["redis"] == {"backend"}
    assert compose("docker-compose.yml")["networks"]["backend"] == {"internal": True}
    assert "ports" not in SERVICES["redis"]
    assert networks["prometheus"] & networks["router"] & networks["prefill"] & networks["decode"] == {"default"}
    assert networks["grafana"] == {"dashboards"} <= networks["prometheus"]


def test_the_password_of_redis_is_on_no_command_line() -> None:
    redis = SERVICES["redis"]
    assert redis["command"][:2] == ["redis-server", "/run/baton/redis.conf"]
    assert not any(word.startswith("--requirepass") for word in redis["command"])
    assert redis["healthcheck"]["test"][0] == "CMD-SHELL" and " -a " not in redis["healthcheck"]["test"][1]


def make_tokens(*arguments: str) -> None:
    module = runpy.run_path(str(ROOT / "deploy" / "make-tokens.py"))
    module["main"](module["parse"](list(arguments)))


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_tokens_are_made_once_are_private_and_the_same_for_all(tmp_path: Path) -> None:
    wanted = [part.replace("/run/baton-tokens", str(tmp_path)) for part in SERVICES["tokens"]["command"]]
    for folder in ("router", "worker", "redis"):
        (tmp_path / folder).mkdir()
    make_tokens(*wanted)
    first = contents(tmp_path)
    assert set(first) == {
        "router/internal-token", "router/admin-token", "router/api-keys", "router/redis-password",
        "worker/internal-token", "worker/redis-password", "redis/redis-password", "redis/redis.conf",
    }  # fmt: skip
    assert first["router/internal-token"] == first["worker/internal-token"]
    assert first["router/redis-password"] == first["worker/redis-password"] == first["redis/redis-password"]
    assert first["redis/redis.conf"] == f"requirepass {first['redis/redis-password']}"
    assert len(set(first.values())) == 5
    assert all(len(text.strip()) >= 32 for text in first.values())
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o400 for name in first)
    make_tokens(*wanted)
    assert contents(tmp_path) == first
    (tmp_path / "router" / "internal-token").unlink()
    make_tokens(*wanted)
    assert contents(tmp_path) == first, "who lacks one is given what the others have"


def test_a_secret_that_nobody_knows_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="unknown: admin-tokn"):
        make_tokens(f"{tmp_path}=admin-tokn")
    assert contents(tmp_path) == {}


def test_api_keys_in_the_environment_are_refused_rather_than_ignored(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "deploy" / "make-tokens.py"), f"{tmp_path}=api-keys"]
    done = subprocess.run(command, env={"BATON_API_KEYS": "sesame"}, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and contents(tmp_path) == {}
    assert "BATON_API_KEYS_FILE" in done.stderr and "sesame" not in done.stderr


def test_a_router_of_compose_asks_for_keys_when_it_is_told_to() -> None:
    environment = SERVICES["router"]["environment"]
    told = {"BATON_API_KEYS_FILE": "/run/baton/api-keys", "BATON_ROUTER_ALLOW_ANONYMOUS": "false"}
    assert told.items() <= filled_in(environment, told).items()
    assert filled_in(environment, {})["BATON_API_KEYS_FILE"] == "", "else its port is this machine's"


def test_trimming_leaves_the_nixl_build_that_is_loaded(tmp_path: Path) -> None:
    for name in ("nixl/a", "nixl_cu12/a", "nixl_cu12.libs/a", "nixl_cu13/a", "nixl_ep_cu13/a", "torch/lib/a"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    for name in ("torch/bin/torch_shm_manager", "torch/bin/test_api", "torch/test/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    trim = runpy.run_path(str(ROOT / "deploy" / "trim-packages.py"))
    trim["main"].__globals__["nixl_build"] = lambda: "13"
    trim["main"](tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {
        "nixl/a",
        "nixl_cu13/a",
        "torch/lib/a",
        "torch/bin/torch_shm_manager",
    }


def test_stand_ins_are_for_what_the_images_are_built_from() -> None:
    images = stand_in_bases.base_images()
    assert [image.partition(":")[0] for image in images] == ["python", "redis"]
    assert set(stand_in_bases.PACKAGES) == set(stand_in_bases.CHANGES) == {"python", "redis"}


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.gpu.yml"])
def test_compose_gives_the_build_only_arguments_that_it_takes(name: str) -> None:
    taken = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    for service in compose(name)["services"].values():
        build = service.get("build", {})
        assert set(build.get("args", {})) <= taken


def test_every_image_is_pinned_and_nothing_runs_as_root() -> None:
    for image in stand_in_bases.base_images():
        assert re.search(r":\d+\.\d+\.\d+-\w+", image), image
    last_stages = re.findall(
        r"^FROM base AS (?:router|worker)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    )
    assert len(last_stages) == 2
    for stage in last_stages:
        assert "USER baton" in stage and "HEALTHCHECK" in stage


@pytest.mark.parametrize("status", [0, 3])
def test_what_a_long_command_says_is_shown_when_it_fails(status: int) -> None:
    command = ["a long thing", "sh", "-c", f"echo out; echo err >&2; exit {status}"]
    argv = [sys.executable, ROOT / "deploy" / "quietly.py", *command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stderr == ("out\nerr\n\n" if status else "")
    how = "failed" if status else "done"
    assert re.fullmatch(rf"a long thing \.\.\.\na long thing: {how} in \d+ s\n", done.stdout)


@pytest.mark.parametrize(("verb", "extras"), [("serve", {"worker"}), ("install", {"worker", "worker,dev,bench"})])
def test_serving_installs_no_tools(verb: str, extras: set[str], tmp_path: Path) -> None:
    command = ["make", "-n", verb, f"VENV={tmp_path / 'venv'}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"-e '\.\[([a-z,]+)\]'", said)) == extras


class TestVllm:
    SERVICES = compose("docker-compose.vllm.yml")["services"]

    def test_the_router_accepts_what_it_is_told(self) -> None:
        router = self.SERVICES["router"]
        argv = [filled(part, {}) for part in router["command"]]
        flags = dict(zip(argv[1::2], argv[2::2], strict=True))
        environ = filled_in(router["environment"], {}) | {"BATON_ROUTER_HOST": "0.0.0.0"}
        settings = load(
            RouterSettings, {"prefill": flags["--prefill"], "decode": flags["--decode"]}, environ, Document()
        )
        assert settings.redis_url == "", "vLLM's servers need no Redis"
        assert [urlsplit(address).hostname for address in (*settings.prefill, *settings.decode)] == [
            "prefill",
            "decode",
        ]

    @pytest.mark.parametrize(("service", "role"), [("prefill", "kv_producer"), ("decode", "kv_consumer")])
    def test_servers_hand_over_under_the_lease_that_the_router_knows(self, service: str, role: str) -> None:
        server = self.SERVICES[service]
        config = json.loads(filled(server["command"][server["command"].index("--kv-transfer-config") + 1], {}))
        told = filled_in(self.SERVICES["router"]["environment"], {})["BATON_ROUTER_VLLM_LEASE_DURATION_S"]
        assert config["kv_role"] == role
        assert config["kv_connector_extra_config"]["kv_lease_duration"] == int(told)

    def test_its_image_is_a_stage_of_the_dockerfile(self) -> None:
        assert f" AS {self.SERVICES['router']['build']['target']}\n" in DOCKERFILE
