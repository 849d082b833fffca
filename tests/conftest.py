"""Fixtures that several areas share: a real Redis, free ports, a folder that nobody should import from."""

from __future__ import annotations

import gc
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
import redis
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.core.process.version import is_compiled
from tests.kits.certificates import Authority

Tell = Callable[[str], None]

# How fast examples are made depends on who else uses the machine, not on the code under test.
settings.register_profile("baton", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("baton")

END_TO_END = "tests/end_to_end/"

if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg")):
    # Without a GPU, kernels run under Triton's interpreter. It has to be said before anything imports Triton.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give HTTP clients one certificate to trust instead of 150: each of them reads the file, and takes 25 ms for it.

    No test connects to anything beyond this machine; those of TLS name the certificates that they made.
    """
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    with tempfile.NamedTemporaryFile("w", prefix="baton-tests-", suffix=".pem", delete=False) as file:
        file.write(first + end)
    os.environ["SSL_CERT_FILE"] = file.name
    config.add_cleanup(Path(file.name).unlink)


def pytest_collection_finish() -> None:
    """Let the garbage collector walk no more through what ten thousand tests and their libraries are made of."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked ``gpu`` or ``interpreted`` before any of its fixtures is made."""
    if item.get_closest_marker("interpreted") is not None and is_compiled():
        pytest.skip("the hot modules are compiled")
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


class ByFileOrStack(LoadFileScheduling):
    """Gives a process the tests of one file, and all of end_to_end, which share workers that take long to start."""

    def _split_scope(self, nodeid: str) -> str:
        """The name of what stays together."""
        file = super()._split_scope(nodeid)
        return END_TO_END if file.startswith(END_TO_END) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileOrStack:
    return ByFileOrStack(config, log)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """One private Redis for the whole test run. The binary is a dependency, so nothing is skipped without it."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The private Redis, emptied. Only ever flushes the server that this test run started."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Redis for one test alone, which may stop, kill and restart it."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def free_port() -> int:
    """A loopback port nobody listened on a moment ago; bind port 0 instead wherever the server can tell its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Shows a line although the test passes."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}")

    return show


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA of ours."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Somebody else's."""
    return Authority(tmp_path_factory.mktemp("other-ca"))


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder with files that are called as modules of ours and of others are. When one is executed, that is named in
    ``SPRUNG`` in the same folder.
    """
    folder = tmp_path / "trap"
    names = [
        "core",
        "router",
        "click",
        "pathlib",
        "redis",
        "uvicorn",
        "torch",
        "nixl",
    ]
    for path in (*(f"{name}.py" for name in names), "workers/__init__.py"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"open({str(folder / 'SPRUNG')!r}, 'a').write({path!r} + chr(10))\n")
    return folder
