"""Fence, notification, environment, and the mapping of NIXL's exceptions."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import nixl._api as nixl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core import ucx
from baton_serve.core.protocol.id_syntax import LEASE_ID_PATTERN, MAX_ID_CHARS
from baton_serve.core.ucx import addresses, apply_ucx_environment, interface_of, rdma_ports, ucx_environment
from baton_serve.workers.limits import MAX_RANKS
from baton_serve.workers.rank_protocol.transfer_errors import BackendFailedError, NixlError, PeerLostError
from baton_serve.workers.transfer.nixl import nixl_agent
from baton_serve.workers.transfer.nixl.nixl_agent import ERRORS
from baton_serve.workers.transfer.read_notices import (
    MAX_NOTIFICATION_BYTES,
    ReadNotice,
    encode_read,
    parse_read,
    reader_of,
)
from baton_serve.workers.transfer.reads.fence import MAX_ALLOCATIONS, stale_positions
from baton_serve.workers.transfer.versions import VERSION


@given(st.integers(1, 2**64 - 1), st.data())
def test_the_fence_names_exactly_what_is_above_the_promise_or_far_below(promise: int, data: st.DataObject) -> None:
    near = st.builds(int.__add__, st.sampled_from([promise, promise - MAX_ALLOCATIONS]), st.integers(-2, 2))
    versions = data.draw(st.lists((near | st.integers()).map(lambda version: version % 2**64), max_size=20))
    stale = [at for at, version in enumerate(versions) if not promise - MAX_ALLOCATIONS < version <= promise]
    assert stale_positions(promise, np.array(versions, dtype=VERSION)) == stale


def test_versions_lie_in_memory_as_the_protocol_says() -> None:
    assert np.array([1, 2**64 - 1], dtype=VERSION).tobytes() == b"\x01" + 7 * b"\0" + 8 * b"\xff"
    assert VERSION.itemsize == 8


@given(st.binary(max_size=350))
def test_no_notification_makes_the_parser_raise(payload: bytes) -> None:
    notice = parse_read(payload)
    assert notice is None or encode_read(notice) == payload


LONG = "a" * MAX_ID_CHARS


@pytest.mark.parametrize(
    "notice",
    [
        ReadNotice("0f3a", 1, reader_of("e1", 7), 0),
        ReadNotice(LONG, MAX_RANKS, reader_of(LONG, 2**63), MAX_RANKS - 1),
    ],
)
def test_notifications_are_understood(notice: ReadNotice) -> None:
    assert parse_read(encode_read(notice)) == notice
    assert len(encode_read(notice)) <= MAX_NOTIFICATION_BYTES


@given(st.from_regex(LEASE_ID_PATTERN, fullmatch=True))
def test_every_lease_id_that_is_taken_can_be_told(lease_id: str) -> None:
    notice = ReadNotice(lease_id, 1, "e1-7", 0)
    assert parse_read(encode_read(notice)) == notice


def test_a_notification_says_who_has_read_what() -> None:
    assert encode_read(ReadNotice("0f3a", 2, reader_of("e1", 7), 1)) == b"0f3a:2:e1-7:1"


@pytest.mark.parametrize(
    "payload",
    [
        b"0f3a:1",
        b"0f3a:0:e1-7:0",
        b"0f3a:01:e1-7:0",
        b"0f3a:65:e1-7:0",
        b"0f3a:1:e1-7:64",
        b"0f3a:1:e1-7:00",
        b"0f3a:1:e1-7:-1",
        b"0f3a:1:e1:0",
        b"0f3a:1:-7:0",
        b"0f3a:1:e1-7:0:0",
        b"0f3a:1:e1-7:0\n",
        b"a" * 129 + b":1:e1-7:0",
        b"0f3a:1:" + b"a" * 129 + b"-7:0",
        "0f3a:\u0661:e1-7:0".encode(),
    ],
)
def test_what_no_reader_would_say_is_dropped(payload: bytes) -> None:
    assert parse_read(payload) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_on_loopback_ucx_listens_on_loopback_only(host: str) -> None:
    assert ucx_environment(host)["UCX_NET_DEVICES"] == "lo"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "no-such-host.invalid", "203.0.113.7", "2001:db8::7"])
def test_where_no_interface_is_meant_ucx_chooses_itself(host: str) -> None:
    assert "UCX_NET_DEVICES" not in ucx_environment(host)


def test_on_one_address_ucx_gets_its_interface_and_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ucx, "interface_of", {ipaddress.ip_address("192.0.2.77"): "eth7"}.get)
    monkeypatch.setattr(ucx, "rdma_ports", lambda: ["mlx5_0:1", "mlx5_1:1"])
    assert ucx_environment("192.0.2.77")["UCX_NET_DEVICES"] == "eth7,mlx5_0:1,mlx5_1:1"


def test_ucx_is_told_that_it_may_read_between_gpus_without_nvlink() -> None:
    assert {ucx_environment(host)["UCX_CUDA_IPC_ENABLE_GET_ZCOPY"] for host in ("127.0.0.1", "0.0.0.0")} == {"on"}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_kernel_knows_the_interface_of_an_address(address: str) -> None:
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    assert interface_of(ipaddress.ip_address(address)) == "lo"


def test_every_address_of_this_machine_has_an_interface() -> None:
    names = {name for _, name in socket.if_nameindex()}
    assert {"lo"} <= {name for name, _ in addresses()} <= names
    assert interface_of(ipaddress.ip_address("fe80::1%eth9")) == "eth9"


def test_rdma_devices_are_named_as_ucx_names_them(tmp_path: Path) -> None:
    for port in ("mlx5_0/ports/1", "mlx5_1/ports/1", "mlx5_1/ports/2"):
        (tmp_path / port).mkdir(parents=True)
    assert rdma_ports(tmp_path) == ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2"]
    assert rdma_ports(tmp_path / "none") == []


def test_what_the_user_has_set_stays() -> None:
    environ = {"UCX_NET_DEVICES": "eth0", "UCX_TLS": "tcp"}
    apply_ucx_environment("127.0.0.1", environ)
    assert (environ["UCX_NET_DEVICES"], environ["UCX_TLS"]) == ("eth0", "tcp")
    assert environ["UCX_LOG_LEVEL"] == "fatal"


def test_every_exception_of_nixl_is_mapped() -> None:
    members = vars(nixl.nixlBind).values()
    theirs = {member for member in members if isinstance(member, type) and issubclass(member, Exception)}
    assert len(theirs) >= 12
    assert theirs <= set(ERRORS)


@pytest.mark.parametrize(("theirs", "ours"), ERRORS.items(), ids=lambda kind: kind.__name__)
def test_each_of_them_comes_out_as_ours(theirs: type[Exception], ours: type[NixlError]) -> None:
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x") if theirs is UnicodeDecodeError else theirs("two\nlines")
    with pytest.raises(ours) as caught, nixl_agent._translated:
        raise error
    assert type(caught.value) is ours
    assert "\n" not in str(caught.value)


def test_a_disconnect_is_the_peers_death() -> None:
    assert ERRORS[nixl.nixlBind.nixlRemoteDisconnectError] is PeerLostError
    assert ERRORS[nixl.nixlBind.nixlBackendError] is BackendFailedError
