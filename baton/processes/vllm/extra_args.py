"""The arguments that people pass on to every vLLM server. Pure."""

from __future__ import annotations

import shlex
from itertools import pairwise

#: Arguments that Baton gives each server itself, and what to use in their place.
OURS = {
    "--host": "servers listen on 127.0.0.1, and clients ask the router: --host of baton up",
    "--port": "each server gets a port of its own, and clients ask the router: --port of baton up",
    "--uds": "servers are asked over TCP",
    "--model": "use --model of baton up",
    "--kv-transfer-config": "prefill and decode servers get one each, with the router's vllm_lease_duration_s",
    "--tensor-parallel-size": "use --tp of baton up, or --prefill-tp and --decode-tp",
    "-tp": "use --tp of baton up, or --prefill-tp and --decode-tp",
    "--api-key": "set BATON_VLLM_API_KEYS, a key between router and servers, or BATON_API_KEYS for its clients",
    "--config": "the file could have any of the arguments that Baton gives: pass its arguments themselves",
}
_DATA_PARALLEL_SIZE = ("--data-parallel-size", "-dp")
_MAX_NUM_SEQS = ("--max-num-seqs",)


class ExtraArgs:
    """The arguments of one string, as a shell splits it. Raises ValueError for what a server must not be given."""

    def __init__(self, text: str) -> None:
        try:
            self.argv = tuple(shlex.split(text))
        except ValueError as error:
            raise ValueError(f"not arguments as a shell splits them: {error}") from None
        for name, _ in self._named():
            if (ours := _ours(name)) is not None:
                raise ValueError(f"{ours} is not passed on: {OURS[ours]}")
        if self.argv and not self.argv[0].startswith("-"):
            raise ValueError(f"arguments for vLLM begin with a dash, unlike {self.argv[0]!r}")

    @property
    def num_engines(self) -> int:
        """Data-parallel ranks of one server, each of which has a port on the side channel."""
        return self._number(_DATA_PARALLEL_SIZE) or 1

    @property
    def max_num_seqs(self) -> int | None:
        """Sequences that a server runs at once; None: vLLM's default."""
        return self._number(_MAX_NUM_SEQS)

    def _number(self, names: tuple[str, ...]) -> int | None:
        """The value that counts, the last one; None where it is not given, or is no number, which vLLM refuses."""
        found = [value for name, value in self._named() if name in names]
        return int(found[-1]) if found and found[-1].isdecimal() else None

    def _named(self) -> list[tuple[str, str]]:
        """Name and value of each flag; vLLM reads underscores as dashes."""
        pairs = []
        for part, following in pairwise((*self.argv, "")):
            if part.startswith("-"):
                name, has_value, value = part.partition("=")
                pairs.append((name.replace("_", "-"), value if has_value else following))
        return pairs


def _ours(name: str) -> str | None:
    """Which of ``OURS`` the flag is. vLLM takes a key of a JSON value after a dot, and the beginning of a long name."""
    name = name.partition(".")[0]
    is_long = name.startswith("--") and name != "--"
    return next((ours for ours in OURS if name == ours or (is_long and ours.startswith(name))), None)
