"""What the router knows of the vLLM server behind a worker, in addition to what it knows of every worker."""

from __future__ import annotations

from dataclasses import dataclass

from baton_serve.core.protocol.worker import WorkerLoad


@dataclass(slots=True, eq=False)
class VllmServerFacts:
    """Facts about one vLLM server. A worker of another kind keeps the defaults."""

    #: Host and port of its side channel, from which its compatibility hash comes.
    side_channel: tuple[str, int] | None = None
    #: The port on the same host where it answers handshakes over HTTP instead; 0: none is known.
    handshake_port: int = 0
    #: Sequences that one engine runs at once: as its address or its announcement says.
    max_num_seqs: int = 0
    #: Engines, its data-parallel ranks.
    num_engines: int = 1
    #: What it announced last of its load; None: it announces nothing.
    announced_load: WorkerLoad | None = None
    #: Whether its engine can hand blocks over, and read them. False: a vLLM without the NixlConnector.
    hands_off: bool = True
    #: Whether its side channel answered in a format that this router does not know: another version's of vLLM.
    other_format: bool = False
    #: Hand-offs of its engine's that no D could have read, of this router's requests.
    num_unreadable: int = 0
