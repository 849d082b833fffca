"""Traces: what is read, what is refused with the number of its line, and how one is stretched."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from baton_serve.router.placement.chunks import num_chunks_in
from bench.scale.load.job import Job
from bench.scale.load.trace import BadTrace, read_trace, stretched

GOOD = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [3, 4]}


def test_lines_become_requests_in_order_of_time(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps({**GOOD, 'timestamp': 0})}\n")
    assert read_trace(file) == [Job(0.0, 600, 7, (3, 4)), Job(1.5, 600, 7, (3, 4))]


def test_a_compressed_file_is_read_as_well(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    assert len(read_trace(file)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "\xff\xfe",
        json.dumps({**GOOD, "input_length": 0}),
        json.dumps({**GOOD, "output_length": -1}),
        json.dumps({**GOOD, "timestamp": -1}),
        json.dumps({**GOOD, "timestamp": "soon"}),
        json.dumps({**GOOD, "hash_ids": [3]}),
        json.dumps({**GOOD, "hash_ids": [3, -4]}),
        json.dumps({**GOOD, "hash_ids": None}),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(f"{json.dumps(GOOD)}\n{line}\n".encode("latin-1"))
    with pytest.raises(BadTrace, match="line 2"):
        read_trace(file)


@pytest.mark.parametrize(("name", "data"), [("a.jsonl", b"\n"), ("a.jsonl.gz", b"no gzip"), ("b.gz", b"\x1f\x8b\x08")])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadTrace):
        read_trace(tmp_path / name)


def test_more_load_is_more_copies_that_share_no_prefix() -> None:
    trace = [Job(float(second), 512, 10, (second,)) for second in range(101)]
    jobs = list(stretched(trace, rate=5.05, seconds=20.0, rng=random.Random(1)))
    assert 80 <= len(jobs) <= 120
    assert [job.came_s for job in jobs] == sorted(job.came_s for job in jobs)
    assert len({job.prefix_ids for job in jobs}) == len(jobs)


def test_equal_beginnings_have_equal_chunks_and_other_ones_have_none() -> None:
    one, longer, other = (
        Job(0.0, num, 1, ids).prompt() for num, ids in ((1024, (1, 2)), (1500, (1, 2, 3)), (1024, (4, 5)))
    )
    assert len(one.chunks) == num_chunks_in(4096)
    assert longer.chunks[: len(one.chunks)] == one.chunks
    assert not set(one.chunks) & set(other.chunks)
    assert one.num_tokens == 1024
