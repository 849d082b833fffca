"""When which engine is connected, tried again, and forgotten."""

from __future__ import annotations

import pytest

from baton_serve.router.vllm.leases.connections import FIRST_PAUSE_MS, IDLE_MS, LONGEST_PAUSE_MS, Connections
from baton_serve.router.vllm.leases.remote_engine import MAX_RANKS, RemoteEngine

A = RemoteEngine(engine_id="a", host="127.0.0.1", port=5600)
A_OF_TWO = RemoteEngine(engine_id="a", host="127.0.0.1", port=5600, tp_size=2)
B = RemoteEngine(engine_id="b", host="127.0.0.1", port=5601)


def wanting(*engines: RemoteEngine) -> Connections:
    connections = Connections()
    for one in engines:
        connections.want(one, 0)
    return connections


def test_a_wanted_engine_is_connected_at_once_and_once() -> None:
    connections = wanting(A, B)
    assert connections.next_ms() == 0
    assert connections.take_due({"a", "b"}, 0) == [A, B]
    connections.want(A, 1)
    assert (connections.take_due({"a", "b"}, 1), connections.next_ms()) == ([], None)
    connections.made("a", 1, 2)
    assert connections.connected == {"a"}


def test_pauses_grow_and_begin_again_after_a_success() -> None:
    connections = wanting(A)
    now_ms, pauses = 0, []
    for _ in range(7):
        assert connections.take_due({"a"}, now_ms) == [A]
        connections.lost("a", now_ms)
        next_ms = connections.next_ms()
        assert next_ms is not None and connections.take_due({"a"}, next_ms - 1) == []
        pauses.append(next_ms - now_ms)
        now_ms = next_ms
    assert pauses[:3] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS]
    assert pauses[-1] == LONGEST_PAUSE_MS
    connections.take_due({"a"}, now_ms)
    connections.made("a", 1, now_ms)
    connections.lost("a", now_ms)
    assert (connections.next_ms(), connections.connected) == (now_ms + FIRST_PAUSE_MS, set())


def test_an_engine_without_leases_is_not_tried_again() -> None:
    connections = wanting(A)
    connections.take_due({"a"}, 0)
    connections.lost("a", 0)
    assert (connections.take_due(set(), LONGEST_PAUSE_MS), connections.next_ms()) == ([], None)


def test_without_an_agent_engines_are_forgotten_after_their_last_lease() -> None:
    connections = wanting(A, B)
    connections.meet(B, 0)
    connections.drop_unneeded({"a"})
    assert "a" in connections
    connections.drop_unneeded(set())
    assert ("a" in connections, "b" in connections) == (False, True)


def test_a_new_agent_connects_everything_at_once() -> None:
    connections = wanting(A, B)
    connections.take_due({"a", "b"}, 0)
    connections.made("a", 1, 0)
    connections.all_lost(10)
    assert (connections.connected, connections.take_due({"a", "b"}, 10)) == (set(), [A, B])


def test_an_idle_engine_is_disconnected_after_a_while() -> None:
    connections = wanting(A, B)
    connections.take_due({"a", "b"}, 0)
    connections.made("a", 1, 0)
    connections.made("b", 1, 0)
    assert connections.next_ms() == IDLE_MS
    assert connections.take_idle({"b"}, IDLE_MS - 1) == []
    assert (connections.take_idle({"b"}, IDLE_MS), connections.connected) == (["a"], {"b"})
    connections.made("a", 1, IDLE_MS)  # it was told to go while its answer was under way
    assert connections.connected == {"b"}


def test_an_engine_that_is_met_is_connected_and_stays_so_without_leases() -> None:
    connections = Connections()
    connections.meet(A, 0)
    assert connections.take_due(set(), 0) == [A]
    connections.lost("a", 0)
    assert connections.take_due(set(), FIRST_PAUSE_MS) == [A]
    connections.made("a", 1, 0)
    assert (connections.take_idle(set(), IDLE_MS), connections.connected) == ([], {"a"})
    connections.all_lost(IDLE_MS)
    assert connections.take_due(set(), IDLE_MS) == [A]
    connections.made("a", 1, IDLE_MS)
    connections.left("a")
    assert (connections.take_idle(set(), 2 * IDLE_MS), connections.connected) == (["a"], set())


def test_the_other_ranks_are_connected_once_a_lease_names_them() -> None:
    connections = Connections()
    connections.meet(A, 0)
    connections.take_due(set(), 0)
    connections.made("a", 1, 0)
    connections.want(A_OF_TWO, 1)
    assert (connections.connected, connections.take_due({"a"}, 1)) == (set(), [A_OF_TWO])
    connections.made("a", 2, 2)
    assert connections.connected == {"a"}


def test_the_first_rank_alone_does_not_count_if_the_others_are_named_meanwhile() -> None:
    connections = Connections()
    connections.meet(A, 0)
    connections.take_due(set(), 0)
    connections.want(A_OF_TWO, 1)
    assert connections.take_due({"a"}, 1) == [], "one question at a time"
    assert connections.made("a", 1, 2)
    assert (connections.connected, connections.take_due({"a"}, 2)) == (set(), [A_OF_TWO])


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine_id": ""},
        {"engine_id": "a b"},
        {"host": "a b"},
        {"host": "tcp://a"},
        {"port": 0},
        {"port": 65536},
        {"tp_size": 0},
        {"pp_size": -1},
        {"dcp_size": 0},
        {"tp_size": MAX_RANKS, "pp_size": 2},
    ],
)
def test_the_facts_that_a_worker_says_of_itself_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        RemoteEngine(**{"engine_id": "a", "host": "h", "port": 1, **wrong})  # type: ignore[arg-type]


def test_every_rank_is_named_the_first_one_first() -> None:
    engine = RemoteEngine(engine_id="a", host="::1", port=1, tp_size=2, pp_size=2)
    assert engine.ranks == [(0, 0), (0, 1), (1, 0), (1, 1)]
