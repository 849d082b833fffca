"""What is read of chunks without the parser is what the parser would have read."""

from __future__ import annotations

from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_serve.core.net.client.chunks import whole_chunks

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BODIES = st.lists(
    st.binary(min_size=1, max_size=40) | st.sampled_from([b"\r\n", b"1\r\nx\r\n", b"0\r\n\r\n"]), max_size=4
)


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


class Parsed:
    """What the parser makes of chunks."""

    def __init__(self, data: bytes) -> None:
        self.body = b""
        self.is_between = True
        self.is_over = False
        httptools.HttpResponseParser(self).feed_data(HEAD + data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_chunk_header(self) -> None:
        self.is_between = False

    def on_chunk_complete(self) -> None:
        self.is_between = True

    def on_message_complete(self) -> None:
        self.is_over = True


@given(BODIES)
def test_whole_chunks_are_read(bodies: list[bytes]) -> None:
    assert whole_chunks(b"".join(map(chunk, bodies))) == b"".join(bodies)


@given(BODIES, st.sampled_from([b"", b"0\r\n\r\n", b"5;x=y\r\nhello\r\n", b"4\r\nhello\r\n", b"x"]), st.integers(0, 60))
def test_the_parser_agrees_wherever_the_data_ends(bodies: list[bytes], more: bytes, num_missing: int) -> None:
    data = b"".join(map(chunk, bodies)) + more
    data = data[: len(data) - num_missing]
    read = whole_chunks(data)
    if read is not None:
        parsed = Parsed(data)
        assert (parsed.body, parsed.is_between, parsed.is_over) == (read, True, False)


@given(st.binary(max_size=60))
def test_any_data_is_read_as_the_parser_would_or_not_at_all(data: bytes) -> None:
    read = whole_chunks(data)
    assert read is None or Parsed(data).body == read


@pytest.mark.parametrize("size", [b"0", b"00005", b"5 ", b"+5", b"0x5", b"5;a=b", b"", b"1000"])
def test_only_ordinary_sizes_are_read(size: bytes) -> None:
    assert whole_chunks(size + b"\r\n" + b"x" * (int(size, 16) if size == b"1000" else 5) + b"\r\n") is None


def test_a_chunk_that_is_cut_off_is_left_to_the_parser() -> None:
    data = chunk(b"a") + chunk(b"b")
    for begin, end in pairwise(range(len(data))):
        assert whole_chunks(data[:end]) in (None, b"a"), begin
