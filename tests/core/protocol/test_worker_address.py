"""Addresses of workers that are not in the registry."""

from __future__ import annotations

import pytest

from baton_serve.core.protocol.addresses import MAX_URL_CHARS
from baton_serve.core.protocol.worker_address import check_once, worker_address


def test_an_address_without_a_kind_is_a_url_as_before() -> None:
    address = worker_address("h:1")
    assert (address.text, address.worker_id, address.url) == ("http://h:1", "http://h:1", "http://h:1")
    assert not address.is_vllm
    assert address.max_num_seqs == 0


@pytest.mark.parametrize(
    ("given", "worker_id", "url", "side_channel", "max_num_seqs"),
    [
        ("vllm+http://h:8000", "vllm+http://h:8000", "http://h:8000", ("h", 5600), 256),
        ("vllm+https://h/base/", "vllm+https://h/base", "https://h/base", ("h", 5600), 256),
        ("vllm+http://h:1?side_channel=5601", "vllm+http://h:1", "http://h:1", ("h", 5601), 256),
        ("vllm+http://h:1/?max_num_seqs=16", "vllm+http://h:1", "http://h:1", ("h", 5600), 16),
        ("vllm+http://h:1?side_channel=o:2&max_num_seqs=3", "vllm+http://h:1", "http://h:1", ("o", 2), 3),
        ("vllm+http://[::1]:1?side_channel=[fe80::1]:2", "vllm+http://[::1]:1", "http://[::1]:1", ("fe80::1", 2), 256),
    ],
)
def test_the_parts_of_a_vllm_servers_address_are_understood(
    given: str, worker_id: str, url: str, side_channel: tuple[str, int], max_num_seqs: int
) -> None:
    address = worker_address(given)
    assert (address.worker_id, address.url, address.is_vllm) == (worker_id, url, True)
    assert (address.side_channel, address.max_num_seqs) == (side_channel, max_num_seqs)
    assert worker_address(address.text) == address


def test_handshakes_are_asked_where_people_say() -> None:
    assert worker_address("vllm+http://h:1").handshake_port == 0
    address = worker_address("vllm+http://h:1?side_channel=o:2&handshake=6600&max_num_seqs=3")
    assert (address.side_channel, address.handshake_port, address.max_num_seqs) == (("o", 2), 6600, 3)
    moved = address.at("10.0.0.7")
    assert (moved.side_channel, moved.handshake_port, moved.max_num_seqs) == (("o", 2), 6600, 3)


def test_a_server_has_the_name_that_people_give_it() -> None:
    assert worker_address("vllm+http://h:1").name == ""
    assert worker_address("vllm+http://h:1?name=decode-1").at("10.0.0.7").name == "decode-1"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("vllm+h:1", "vllm"),
        ("vllm+ftp://h:1", "http"),
        ("vllm+http://sesame:secret@h:1", "host:port"),
        ("vllm+http://h:1?side_chanel=2", "side_chanel is no option"),
        ("vllm+http://h:1?side_channel=0", "side_channel"),
        ("vllm+http://h:1?side_channel=65536", "side_channel"),
        ("vllm+http://h:1?side_channel=", "side_channel"),
        ("vllm+http://h:1?side_channel=sesame!:1", "side_channel"),
        ("vllm+http://h:1?handshake=0", "handshake"),
        ("vllm+http://h:1?handshake=h:1", "handshake"),
        ("vllm+http://h:1?max_num_seqs=0", "max_num_seqs"),
        ("vllm+http://h:1?max_num_seqs=-1", "max_num_seqs"),
        ("vllm+http://h:1?max_num_seqs=1&max_num_seqs=2", "twice"),
        ("vllm+http://h:1?side_channel=1&side_channel=o:1", "twice"),
        ("vllm+http://h:1?max_num_seqs=1#sesame", "ASCII"),
        ("vllm+http://h:1?name=", "name"),
        ("vllm+http://h:1?name=sesame,2", "name"),
        ("http://h:1?max_num_seqs=1", "host:port"),
        (f"vllm+http://h:1/{'x' * MAX_URL_CHARS}", "characters"),
    ],
)
def test_a_malformed_address_is_refused_and_not_repeated(given: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        worker_address(given)
    assert "sesame" not in str(caught.value)
    assert "h:1" not in str(caught.value)


def test_an_address_of_a_host_name_keeps_the_options_of_the_name() -> None:
    address = worker_address("vllm+http://pods:8000?side_channel=5601&max_num_seqs=9")
    assert address.at("10.0.0.7") == worker_address("vllm+http://10.0.0.7:8000?side_channel=5601&max_num_seqs=9")
    assert address.at("fe80::7").side_channel == ("fe80::7", 5601)
    assert worker_address("vllm+http://pods:1?side_channel=o:2").at("10.0.0.7").side_channel == ("o", 2)


def test_one_worker_has_one_set_of_options() -> None:
    first, other = worker_address("vllm+http://h:1?max_num_seqs=1"), worker_address("vllm+http://h:1?max_num_seqs=2")
    check_once([first, first])
    with pytest.raises(ValueError, match="twice"):
        check_once([first, other])
