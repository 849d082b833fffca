"""Reads the chunks of a streamed answer, as far as they are ordinary: small, whole, and without extensions. Pure.

A token is a chunk. Here it costs a comparison of both ends and a slice; the parser takes three calls back into Python
for it.
"""

from __future__ import annotations

from typing import Final

_LINE_END: Final = b"\r\n"
#: What stands before a chunk, and the bytes of that chunk with the line's end behind it. An event is seldom larger.
_SIZES: Final = {b"%x" % size: size + len(_LINE_END) for size in range(1, 4096)}
#: The line that stands before the only chunk in data of so many bytes. Where no chunk has that many, it is longer than
#: the data, which then does not begin with it.
_LINES: Final = [bytes(8192)] * 4104
for _size, _num_bytes in _SIZES.items():
    _LINES[len(_size) + len(_LINE_END) + _num_bytes] = _size + _LINE_END


def whole_chunks(data: bytes) -> bytes | None:
    """What the chunks in ``data`` carry, joined. ``data`` begins where a chunk begins.

    Returns None unless ``data`` is whole ordinary chunks and nothing else: the parser has to look at it then. The last
    chunk of an answer, which is empty, is none of them.
    """
    if len(data) < len(_LINES):
        line = _LINES[len(data)]
        if data.startswith(line) and data.endswith(_LINE_END):  # just one, nearly always
            return data[len(line) : -len(_LINE_END)]
    bodies = []
    begin = 0
    while begin < len(data):
        end = data.find(_LINE_END, begin)
        num_bytes = _SIZES.get(data[begin:end]) if end >= 0 else None
        if num_bytes is None:
            return None
        start = end + len(_LINE_END)
        begin = start + num_bytes
        if data[begin - len(_LINE_END) : begin] != _LINE_END:
            return None
        bodies.append(data[start : begin - len(_LINE_END)])
    return b"".join(bodies)
