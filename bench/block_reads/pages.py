"""The report of block reads: tables and plots of the findings. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.block_reads.findings import HOST, Findings
from bench.report.model import Line, Plot, Report, Table
from bench.report.spread import spread

KIB = 1024
READS = {"with the fence": "fenced_s", "without": "unfenced_s"}
ABOUT = """\
Two processes with a NIXL agent each, through the block transfer of a rank as the product has it. Blocks are drawn at \
random from {source} MiB, so that neither a processor's cache nor NIXL's joining of neighbours helps. The time of a \
read is from the command to the report, which covers the way to the agent's thread and back, all data, the fence, and \
the notification of the other process."""
PLAIN_COPY = """\
The plain copy is one memcpy per piece, in one loop in C on one core (`numpy.take`): as many pieces of the same size, \
drawn in the same way from as much memory of the reading process, into the same blocks of its cache. All of this \
memory has been touched before, and has huge pages if the kernel gives them. Copies, reads with the \
fence and reads without it are made in turn. Ratios are of their speeds: 1 is as fast as the plain copy."""
GPU_COPY = """\
All memory is that of one GPU, which both processes use. The plain copy is one kernel of torch for all pieces \
(`index_select`): as many of the same size, drawn in the same way from as much memory of the reading process, into the \
same blocks of its cache, until the GPU has finished. Copies, reads with the fence and reads without it are made in \
turn. Ratios are of their speeds: 1 is as fast as the plain copy."""
REFUSED = """\
The kernel did not let the reader read the memory of the other process (ptrace rights), so what is called shared \
memory here went over TCP."""


def report(found: Mapping[str, Sequence[Findings]], num_runs: int) -> Report:
    """The report; ``found`` has the findings of each transport, in the order of their piece sizes."""
    everything = [findings for several in found.values() for findings in several]
    case = everything[0].case
    about = [ABOUT.format(source=case.source_bytes // 2**20), PLAIN_COPY if case.memory == HOST else GPU_COPY]
    if not all(findings.can_read for findings in everything):
        about.append(REFUSED)
    return Report(
        title="Block reads",
        command=f"python -m bench.block_reads --runs {num_runs}" + f" --memory {case.memory}" * (case.memory != HOST),
        about=about,
        tables=[*(_speeds(name, several) for name, several in found.items()), _fixed(found)],
        plots=[_over_sizes(found)],
    )


def summary(findings: Findings) -> str:
    """One line: piece size, ratios of the largest reads."""
    with_fence, without = (spread(findings.ratios(field)) for field in READS.values())
    return f"{findings.case.piece_bytes // KIB} KiB: {with_fence} of a plain copy with the fence, {without} without"


def _speeds(name: str, several: Sequence[Findings]) -> Table:
    columns = ["KiB of a piece", "blocks", "plain copy, GB/s", *READS]
    rows = []
    for findings in several:
        count, piece_bytes = findings.case.counts[-1], findings.case.piece_bytes
        copies = [count * piece_bytes / sample.copy_s / 1e9 for sample in findings.largest]
        ratios = (spread(findings.ratios(field)) for field in READS.values())
        rows.append([str(piece_bytes // KIB), str(count), spread(copies), *ratios])
    return Table(f"Reads over {name}, beside the plain copy", columns, rows)


def _fixed(found: Mapping[str, Sequence[Findings]]) -> Table:
    columns = ["transport", "with the fence, us", "without, us", "of it in the agent's thread, us"]
    rows = [
        [name, *(spread(several[0].fixed_us(field)) for field in ("fenced_s", "unfenced_s", "thread_s"))]
        for name, several in found.items()
    ]
    size = next(iter(found.values()))[0].case.piece_bytes // KIB
    return Table(f"What a read costs before its first byte (from reads of few pieces of {size} KiB)", columns, rows)


def _over_sizes(found: Mapping[str, Sequence[Findings]]) -> Plot:
    lines = []
    for name, several in found.items():
        for label, field in READS.items():
            runs = {one.case.piece_bytes / KIB: one.ratios(field) for one in several}
            lines.append(Line.of_runs(f"{name}, {label}", runs))
    most = max(one.case.counts[-1] for several in found.values() for one in several)
    title = f"Reads of up to {most} blocks"
    return Plot("block-reads-sizes", title, "KiB of a piece", "speed, of the plain copy", lines, log_x=True)
