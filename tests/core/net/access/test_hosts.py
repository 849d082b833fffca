"""Which names a port without a token goes by, and which pages it is asked for by."""

from __future__ import annotations

import pytest

from baton_serve.core.net.access.hosts import Hosts, hosts_of, is_from_other_site, is_loopback, name_in
from baton_serve.core.protocol.errors import PermissionDeniedError

LOOPBACK = [
    b"localhost",
    b"LocalHost:8000",
    b"localhost.:8000",
    b"baton.localhost:1",
    b"127.0.0.1",
    b"127.0.0.1:8000",
    b"127.255.3.4",
    b"[::1]",
    b"[::1]:8000",
    b"[::ffff:127.0.0.1]:8000",
]
ADDRESSES = [b"10.0.0.5:8000", b"0.0.0.0:8000", b"[fd00::5]", b"192.168.1.1"]
OTHERS = [
    b"",
    b":8000",
    b"attacker.example",
    b"attacker.example:8000",
    b"localhost.attacker.example",
    b"127.0.0.1.attacker.example",
    b"localhostx",
    b"notlocalhost",
    b"127.0.0.1:8000:8000",
    b"127.0.0.1/x",
    b"attacker.example@127.0.0.1",
    b"127.0.0.1 ",
    b"[::1",
    b"[::1]x",
    b"[attacker.example]",
    b"localhost:80a",
    b"127.1",
    b"\xe9\xff",
]


def takes(hosts: Hosts, host: bytes | None) -> bool:
    try:
        hosts.check(host)
    except PermissionDeniedError as error:
        assert (error.status, error.code) == (403, "host_not_allowed")
        return False
    return True


@pytest.mark.parametrize("host", LOOPBACK)
def test_names_of_this_machine_alone_are_taken(host: bytes) -> None:
    assert takes(hosts_of("127.0.0.1", "127.0.0.1", ()), host)


@pytest.mark.parametrize("host", [*OTHERS, *ADDRESSES])
def test_names_other_than_this_machines_own_are_refused(host: bytes | None) -> None:
    hosts = hosts_of("127.0.0.1", "127.0.0.1", ())
    assert not takes(hosts, host)
    assert not takes(hosts, host)  # nor later


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "", "10.0.0.5"])
def test_a_port_that_others_reach_goes_by_its_addresses_and_its_own_name(bound: str) -> None:
    """An address is what no name server can make mean something else."""
    hosts = hosts_of(bound, "D1.internal", ())
    for host in (*LOOPBACK, *ADDRESSES, b"d1.internal:8100", b"d1.INTERNAL"):
        assert takes(hosts, host)
    for other in OTHERS:
        assert not takes(hosts, other)


def test_a_client_that_sends_no_host_is_no_browser() -> None:
    """Probes in HTTP/1.0. The port demands a Host of all others."""
    assert takes(hosts_of("127.0.0.1", "127.0.0.1", ()), None)


def test_names_of_the_setting_are_taken_whatever_the_port() -> None:
    hosts = hosts_of("127.0.0.1", "127.0.0.1", ["llm.example", "fd00::5"])
    assert takes(hosts, b"LLM.example:443") and takes(hosts, b"llm.example") and takes(hosts, b"[fd00::5]:1")
    assert not takes(hosts, b"x.llm.example") and not takes(hosts, b"10.0.0.1")


def test_a_star_allows_every_name() -> None:
    assert all(takes(Hosts("*"), host) for host in (*LOOPBACK, *ADDRESSES, *OTHERS))


def test_the_number_of_remembered_names_is_bounded() -> None:
    hosts = Hosts("*")
    for number in range(10_000):
        hosts.check(b"%d.example" % number)
    assert len(hosts._known) < 1000


@pytest.mark.parametrize(("host", "name"), [(b"[::1]:80", "::1"), (b"A.b.:80", "a.b"), (b"a b", ""), (b"[]", "")])
def test_the_name_in_a_host_header_is_found_without_its_port(host: bytes, name: str) -> None:
    assert name_in(host) == name


@pytest.mark.parametrize(
    ("headers", "other"),
    [
        ({}, False),  # no browser
        ({b"sec-fetch-site": b"none"}, False),  # typed by a person
        ({b"sec-fetch-site": b"same-origin", b"origin": b"https://proxy.example", b"host": b"127.0.0.1"}, False),
        ({b"sec-fetch-site": b"same-site"}, True),  # another port of this machine, too
        ({b"sec-fetch-site": b"cross-site"}, True),
        ({b"sec-fetch-site": b"of-the-future"}, True),
        ({b"origin": b"http://10.0.0.5:8000", b"host": b"10.0.0.5:8000"}, False),
        ({b"origin": b"http://Box.lan", b"host": b"box.LAN"}, False),
        ({b"origin": b"http://10.0.0.5:3000", b"host": b"10.0.0.5:8000"}, True),
        ({b"origin": b"null", b"host": b"10.0.0.5:8000"}, True),
        ({b"origin": b"", b"host": b"10.0.0.5:8000"}, True),
        ({b"origin": b"https://attacker.example", b"host": b"10.0.0.5:8000"}, True),
    ],
)
def test_a_page_of_another_site_is_known_by_its_headers(headers: dict[bytes, bytes], other: bool) -> None:
    assert is_from_other_site(headers) is other


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("p0", False)],
)
def test_loopback_is_known_without_a_name_service(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
