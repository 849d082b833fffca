"""A Redis that asks for a password: given in a file of its own, it reaches every client and nothing that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.connection import parse_url

from baton_serve.baton.config.configuration import Document, load
from baton_serve.baton.config.sources import read_secret_files
from baton_serve.baton.processes.embedded_redis import EmbeddedRedis
from baton_serve.baton.settings import UpSettings
from baton_serve.baton.up.machine_shares import Machine
from baton_serve.baton.up.plan import ServedModel, child_environ, make_plan
from baton_serve.core.leases.store import LeaseStoreError
from baton_serve.core.registry.announcement import WORKERS
from baton_serve.core.stores import lease_store, registry
from baton_serve.router.main import connect as connect_router
from baton_serve.router.settings import RouterSettings
from baton_serve.workers.settings import WorkerSettings
from tests.kits.registry import snapshot


@pytest.fixture
def environ(tmp_path: Path, free_port: int) -> dict[str, str]:
    """What a container is told; the file is for the test to write."""
    return {
        "BATON_REDIS_URL": f"redis://127.0.0.1:{free_port}/0",
        "BATON_REDIS_PASSWORD_FILE": str(tmp_path / "redis-password"),
    }


async def test_router_and_worker_log_in_with_the_password_of_a_file(
    environ: dict[str, str], free_port: int, tmp_path: Path
) -> None:
    with EmbeddedRedis(port=free_port) as server:
        password = parse_url(server.url)["password"]
        (tmp_path / "redis-password").write_text(f"{password}\n")
        given = read_secret_files(environ)
        stores = connect_router(load(RouterSettings, {}, given, Document()))
        worker = load(WorkerSettings, {"model": "m"}, given, Document())
        leases, workers = lease_store(worker), registry(worker, WORKERS)
        assert stores.leases.held("e") == leases.held("e") == []
        assert await snapshot(stores.registry) == await snapshot(workers) == []
        without = lease_store(WorkerSettings(model="m", redis_url=environ["BATON_REDIS_URL"]))
        with pytest.raises(LeaseStoreError, match="Authentication required"):
            without.held("e")
        for registered in (workers, stores.registry):
            await registered.close()
        for kept in (leases, without, stores.leases):
            kept.close()


def test_baton_up_passes_the_password_on_in_the_environment_only() -> None:
    environ = child_environ(
        {"BATON_REDIS_PASSWORD_FILE": "/run/redis"}, redis_url="redis://h", internal_token="t", redis_password="sesame"
    )
    assert "BATON_REDIS_PASSWORD_FILE" not in environ
    settings = UpSettings(redis_url="redis://h", redis_password="sesame")
    made = make_plan(settings, ServedModel("/models/m"), ("baton",), environ, Document(), Machine(num_cpus=2))
    for spec in (made.router, *made.prefill, *made.decode):
        assert spec.environ["BATON_REDIS_PASSWORD"] == "sesame"
        assert not any("sesame" in argument for argument in spec.argv)
        assert "sesame" not in repr(spec)
