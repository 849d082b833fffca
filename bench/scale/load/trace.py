"""Reads a recorded load: a file of JSON lines, compressed with gzip or not.

The format is that of the traces released with Mooncake (FAST'25): ``timestamp`` in ms since the start, ``input_length``
and ``output_length`` in tokens, and ``hash_ids``, one for each 512 tokens of the prompt; the same id, the same prefix.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.scale.load.job import PREFIX_TOKENS, Job


class BadTrace(Exception):
    """The file is no trace; the message is one line for people, with the number of the line."""


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_trace(path: Path) -> list[Job]:
    """The requests in order of their times. Raises BadTrace and OSError."""
    decoder = msgspec.json.Decoder(_Line)
    jobs = []
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    jobs.append(_job(decoder, line, number))
    except (gzip.BadGzipFile, EOFError) as error:
        raise BadTrace(f"{path}: {error}") from None
    if not jobs:
        raise BadTrace(f"{path}: no requests")
    return sorted(jobs, key=lambda job: job.came_s)


def _job(decoder: msgspec.json.Decoder[_Line], data: bytes, number: int) -> Job:
    try:
        line = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadTrace(f"line {number}: {error}") from None
    if not (0 <= line.timestamp < float("inf") and line.input_length > 0 and line.output_length > 0):
        raise BadTrace(f"line {number}: a time, an input_length or an output_length is out of range")
    if len(line.hash_ids) != -(-line.input_length // PREFIX_TOKENS) or min(line.hash_ids) < 0:
        raise BadTrace(f"line {number}: hash_ids are not one for each {PREFIX_TOKENS} tokens")
    return Job(line.timestamp / 1000, line.input_length, line.output_length, tuple(line.hash_ids))


def stretched(jobs: Sequence[Job], rate: float, seconds: float, rng: random.Random) -> Iterator[Job]:
    """``seconds`` of the trace at ``rate`` requests a second on average, in order of time.

    The load of more users is several copies of the trace, not a faster one: what one conversation does keeps its pace.
    Each copy begins at another place of the trace, which is read as a ring, and shares no prefix with the others.
    Raises ValueError for a trace of one moment.
    """
    length_s = jobs[-1].came_s
    if length_s <= 0:
        raise ValueError("all requests of the trace come at once")
    num_copies = max(1, round(rate * length_s / len(jobs)))
    most = 1 + max(max(job.prefix_ids) for job in jobs)
    found = []
    for copy in range(num_copies):
        begin_s = rng.uniform(0, length_s)
        for job in jobs:
            came_s = (job.came_s - begin_s) % length_s
            if came_s < seconds:
                ids = tuple(one + copy * most for one in job.prefix_ids)
                found.append(msgspec.structs.replace(job, came_s=came_s, prefix_ids=ids))
    found.sort(key=lambda job: job.came_s)
    yield from found
