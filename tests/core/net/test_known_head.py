"""What is known of a head is what the parser would have said of it."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from baton_serve.core.net.known_head import MAX_BYTES, KnownHead

LINE = b"POST /v1/completions HTTP/1.1\r\n"
HEAD = LINE + b"host: x\r\nContent-Length: 12\r\naccept: */*\r\n\r\n"
NAMES = [b"host", b"content-length", b"accept"]
TWICE = [b"host", b"content-length", b"content-length"]
CODED = [b"host", b"content-length", b"transfer-encoding"]
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"Host", b"accept", b"x-a", b"x-content-length", b"Content-Length", b"content-length-x"]),
        st.sampled_from([b"", b"1", b"12", b"content-length: 5", b"a\tb", b"\xff"]),
    ),
    max_size=4,
)


class Parsed:
    """What the parser says of data that begins with a head."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.is_over = False
        httptools.HttpRequestParser(self).feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_over = True

    @property
    def names(self) -> list[bytes]:
        return [name for name, _ in self.headers]

    @property
    def others(self) -> list[tuple[bytes, bytes]]:
        """All headers but the length."""
        return [header for header in self.headers if header[0] != b"content-length"]


def learned() -> KnownHead:
    known = KnownHead()
    assert known.learn(HEAD, NAMES)
    return known


@pytest.mark.parametrize("digits", [b"0", b"7", b"12", b"012", b"123456789"])
def test_a_head_with_another_length_is_known(digits: bytes) -> None:
    known, head = learned(), HEAD.replace(b"12", digits)
    assert (known.end_in(head + b"body"), known.num_body_bytes, known.digits) == (len(head), int(digits), digits)


@pytest.mark.parametrize(
    "digits", [b"", b"-1", b"+1", b" 1", b"1 ", b"1x", b"0x1", b"1\r\nx: 2", b"1234567890", b"1_0"]
)
def test_a_head_with_a_malformed_length_is_not_known(digits: bytes) -> None:
    assert learned().end_in(HEAD.replace(b"12", digits) + b"body") == 0


@pytest.mark.parametrize("num_bytes", range(len(HEAD)))
def test_a_part_of_a_head_is_not_known(num_bytes: int) -> None:
    assert learned().end_in(HEAD[:num_bytes]) == 0


@pytest.mark.parametrize("place", range(len(HEAD)))
def test_a_head_with_another_byte_is_not_known(place: int) -> None:
    changed = HEAD[:place] + bytes([HEAD[place] ^ 1]) + HEAD[place + 1 :]
    is_digit = HEAD[place : place + 1].isdigit() and HEAD.index(b"12") <= place < HEAD.index(b"12") + 2
    assert (learned().end_in(changed) > 0) == is_digit


@pytest.mark.parametrize(
    ("head", "names"),
    [
        pytest.param(LINE + b"host: x\r\n\r\n", [b"host"], id="no length"),
        pytest.param(HEAD.replace(b"accept: */*", b"content-length: 12"), TWICE, id="two lengths"),
        pytest.param(HEAD.replace(b"accept: */*", b"transfer-encoding: chunked"), CODED, id="chunks"),
        pytest.param(HEAD.replace(b"*/*", b"*/*\r\n b"), NAMES, id="a line that goes on"),
        pytest.param(HEAD.replace(b"*/*\r\n", b"*/*\n"), NAMES, id="a line without a return"),
        pytest.param(HEAD.replace(b"*/*", b"a\rb"), NAMES, id="a return in a line"),
        pytest.param(b"\r\n" + HEAD, NAMES, id="a blank line before"),
        pytest.param(HEAD[:-2], NAMES, id="not whole"),
        pytest.param(HEAD.replace(b"*/*", b"a" * MAX_BYTES), NAMES, id="a long one"),
        pytest.param(HEAD.replace(b"12", b"12 "), NAMES, id="a blank behind the length"),
        pytest.param(HEAD.replace(b"12", b""), NAMES, id="no digits"),
    ],
)
def test_a_head_that_is_not_plain_is_not_learned(head: bytes, names: list[bytes]) -> None:
    known = learned()
    assert not known.learn(head, names)
    assert (known.end_in(head), known.end_in(HEAD)) == (0, 0), "and what was known is known no more"


@given(HEADERS, HEADERS, st.binary(max_size=4), st.sampled_from([b"\r\n", b"\n", b"\r\n ", b"\r"]))
@example([(b"Content-Length", b"1")], [(b"Content-Length", b"12")], b"", b"\r\n")
def test_a_known_head_means_what_the_parser_says(
    first: list[tuple[bytes, bytes]], second: list[tuple[bytes, bytes]], more: bytes, line_end: bytes
) -> None:
    def head(headers: list[tuple[bytes, bytes]]) -> bytes:
        return LINE + b"".join(b"%b: %b%b" % (*header, line_end) for header in headers) + b"\r\n"

    try:
        before = Parsed(head(first))
    except httptools.HttpParserError:
        assume(False)
    known = KnownHead()
    known.learn(head(first), before.names)
    data = head(second) + more
    end = known.end_in(data)
    if end:
        after = Parsed(data[: end + known.num_body_bytes])
        body = data[end : end + known.num_body_bytes]
        assert (after.others, after.body) == (before.others, body)
        assert after.is_over == (len(data) - end >= known.num_body_bytes)


def test_the_first_head_is_not_wanted_and_later_only_few_of_those_that_always_differ() -> None:
    known, wanted = KnownHead(), []
    for number in range(1, 200):
        assert known.end_in(b"another one") == 0
        if known.is_wanted:
            wanted.append(number)
    assert wanted == [*range(2, 9), 64, 128, 192]
    known.learn(HEAD, NAMES)
    assert known.end_in(HEAD)
    assert not known.is_wanted
