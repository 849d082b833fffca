"""The files beside the code: the example configuration, compose and the tokens it makes, the pins."""

from __future__ import annotations

import re
import runpy
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.configuration import Document, load, variable
from baton.sections import MODELS, settings_model
from baton.sources import read_document
from deploy import stand_in_bases
from protocol.settings import SECRET, SHARED
from workers.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def compose(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_example_configuration_is_valid() -> None:
    document = read_document(str(ROOT / "deploy" / "baton.yaml"))
    for section in MODELS:
        load(settings_model(section), {"model": "m"} if section == "worker" else {}, {}, document)


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.gpu.yml"])
def test_compose_sets_only_variables_that_exist(name: str) -> None:
    known = {variable(section, field) for section in MODELS for field in settings_model(section).model_fields}
    known |= {f"BATON_{field.upper()}_FILE" for field in SECRET & SHARED}
    for service in compose(name)["services"].values():
        assert {key for key in service.get("environment", {}) if key.startswith("BATON_")} <= known


def filled_in(environment: dict[str, str], environ: dict[str, str]) -> dict[str, str]:
    """The variables of a service, for whoever starts compose with ``environ``."""
    return {
        name: re.sub(r"\$\{(\w+):-(.*)\}", lambda match: environ.get(match[1]) or match[2], value)
        for name, value in environment.items()
    }


def worker_settings(files: list[str], service: str, environ: dict[str, str]) -> WorkerSettings:
    """What a worker of these compose files is told, without what is in its image."""
    given = {"BATON_WORKER_HOST": "127.0.0.1"}
    for name in files:
        given |= filled_in(compose(name)["services"][service]["environment"], environ)
    return load(WorkerSettings, {}, {name.removesuffix("_FILE"): value for name, value in given.items()}, Document())


def test_compose_settings_are_accepted() -> None:
    services = compose("docker-compose.yml")["services"]
    for name, section in (("router", "router"), ("prefill", "worker"), ("decode", "worker")):
        given = {
            key.removesuffix("_FILE"): value for key, value in filled_in(services[name]["environment"], {}).items()
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


def test_compose_publishes_on_loopback_only_and_no_worker() -> None:
    published = {
        name: service["ports"]
        for name, service in compose("docker-compose.yml")["services"].items()
        if "ports" in service
    }
    assert published == {
        "router": ["127.0.0.1:8000:8000"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_tokens_are_made_once_and_are_private(tmp_path: Path) -> None:
    make_tokens = runpy.run_path(str(ROOT / "deploy" / "make-tokens.py"))["main"]
    make_tokens(tmp_path)
    first = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(first) == {"internal-token", "admin-token"}
    assert len(set(first.values())) == 2
    assert all(len(text.strip()) >= 32 for text in first.values())
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o400 for path in tmp_path.iterdir())
    make_tokens(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == first


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
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "quietly.py", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert done.stderr == ("out\nerr\n\n" if status else "")
    how = "failed" if status else "done"
    assert re.fullmatch(rf"a long thing \.\.\.\na long thing: {how} in \d+ s\n", done.stdout)


@pytest.mark.parametrize(("verb", "extras"), [("serve", {"worker"}), ("install", {"worker", "worker,dev"})])
def test_serving_installs_no_tools(verb: str, extras: set[str], tmp_path: Path) -> None:
    command = ["make", "-n", verb, f"VENV={tmp_path / 'venv'}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"-e '\.\[([a-z,]+)\]'", said)) == extras
