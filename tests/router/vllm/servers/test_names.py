"""Host names in vLLM addresses that stand for several servers."""

from __future__ import annotations

import logging
import socket

import pytest

from baton_serve.router.vllm.servers.names import of_one_family, resolve
from tests.kits.router.cluster import eventually
from tests.router.vllm.servers.conftest import Watched


def ids(watched: Watched) -> set[str]:
    return {worker.worker_id for worker in watched.pool}


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (["10.0.0.2", "10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.2"]),
        (["::1", "127.0.0.1"], ["127.0.0.1"]),
        (["fe80::2", "fe80::1"], ["fe80::1", "fe80::2"]),
        ([], []),
    ],
)
def test_a_machine_with_two_kinds_of_addresses_is_one_worker(found: list[str], kept: list[str]) -> None:
    assert of_one_family(found) == kept


async def test_this_machine_is_one_worker() -> None:
    assert of_one_family(await resolve("localhost")) == ["127.0.0.1"]


async def test_a_name_is_a_worker_for_each_address(watched: Watched) -> None:
    watched.names["pods"] = ["127.0.0.1", "127.0.0.2"]
    watched.pool.add_static([], ["vllm+http://pods:9?max_num_seqs=3"])
    await eventually(lambda: ids(watched) == {"vllm+http://127.0.0.1:9", "vllm+http://127.0.0.2:9"})
    for worker in watched.pool:
        assert worker.given is not None
        assert (worker.given.worker_id, worker.usage.limit) == ("vllm+http://pods:9", 3)
        assert worker.server.side_channel == (worker.url.removeprefix("http://").removesuffix(":9"), 5600)


async def test_addresses_come_and_go_while_requests_run(watched: Watched) -> None:
    watched.names["pods"] = ["127.0.0.1", "127.0.0.2"]
    watched.pool.add_static(["vllm+http://pods:9"], [])
    await eventually(lambda: len(ids(watched)) == 2)
    leaving = watched.pool.get("vllm+http://127.0.0.1:9")
    staying = watched.pool.get("vllm+http://127.0.0.2:9")
    assert leaving is not None
    reservation = watched.pool.enter(leaving)
    watched.names["pods"] = ["127.0.0.3", "127.0.0.2"]
    await eventually(lambda: ids(watched) == {"vllm+http://127.0.0.2:9", "vllm+http://127.0.0.3:9"})
    assert watched.pool.get("vllm+http://127.0.0.2:9") is staying
    watched.pool.leave(reservation)
    assert leaving.usage.in_flight == 0


async def test_a_name_with_one_address_stays_a_name_until_it_has_several(watched: Watched) -> None:
    server = await watched.server()
    watched.names["one"] = ["127.0.0.1"]
    watched.channels.serve(5600)
    (worker,) = watched.pool.add_static([], [f"vllm+http://one:{server.port}"])
    await eventually(lambda: "(the worker does not accept" in worker.problem)  # as no such name is known here
    assert ids(watched) == {f"vllm+http://one:{server.port}"}
    watched.names["one"] = ["127.0.0.1", "127.0.0.2"]
    await eventually(lambda: len(ids(watched)) == 2)
    found = watched.pool.get(server.worker_id)
    assert found is not None
    await eventually(lambda: found.takes_work and found.models == ("tiny",))
    watched.names["one"] = ["127.0.0.1"]
    await eventually(lambda: len(ids(watched)) == 1)
    assert watched.pool.get(server.worker_id) is found, "the server that stays keeps its worker"


async def test_a_model_is_served_while_its_name_gets_a_second_address(watched: Watched) -> None:
    """Neither is the engine ever gone, so that requests that hold its blocks are not prefilled again."""
    server = await watched.server()
    watched.names["localhost"] = ["127.0.0.1"]
    watched.channels.serve(5600)
    by_name = f"vllm+http://localhost:{server.port}"
    watched.pool.add_static([], [by_name])
    await eventually(lambda: (one := watched.pool.get(by_name)) is not None and bool(one.models and one.engine_id))
    engine_id = watched.pool.get(by_name).engine_id  # type: ignore[union-attr]
    unserved: list[set[str]] = []

    def look() -> None:
        if watched.pool.candidates("tiny") is None:
            unserved.append(ids(watched))

    watched.pool.on_left.append(lambda _worker: look())
    watched.names["localhost"] = ["127.0.0.1", "127.0.0.2"]
    await eventually(lambda: by_name not in ids(watched))
    assert ids(watched) == {server.worker_id, f"vllm+http://127.0.0.2:{server.port}"}
    assert not unserved
    assert engine_id not in watched.gone


async def test_a_name_that_cannot_be_resolved_now_keeps_the_addresses_that_it_had(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.names["pods"] = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with caplog.at_level(logging.WARNING, logger="baton.router"):
        (worker,) = watched.pool.add_static([], ["vllm+http://pods:9"])
        await eventually(lambda: "Name or service not known" in worker.problem)
        told = [record for record in caplog.records if "resolved" in record.getMessage()]
        assert len(told) == 1
        assert not worker.takes_work
    watched.names["pods"] = ["127.0.0.1", "127.0.0.2"]
    await eventually(lambda: len(ids(watched)) == 2)
    watched.names["pods"] = socket.gaierror(socket.EAI_AGAIN, "Temporary failure")
    await eventually(lambda: all("Temporary failure" in one.problem for one in watched.pool))
    assert len(ids(watched)) == 2, "DNS is away, not the servers"


async def test_a_name_that_is_deleted_is_not_looked_up_again(watched: Watched) -> None:
    watched.names["pods"] = ["127.0.0.1", "127.0.0.2"]
    watched.pool.add_static([], ["vllm+http://pods:9"])
    await eventually(lambda: len(ids(watched)) == 2)
    watched.pool.forget_address("vllm+http://pods:9")
    assert len(watched.pool) == 0
    assert "0 host names" in repr(watched.vllm)


async def test_a_name_with_tls_stays_a_name_since_a_certificate_is_for_it(watched: Watched) -> None:
    watched.pool.add_static([], ["vllm+https://pods:9"])
    assert "1 watched, 0 host names" in repr(watched.vllm)
