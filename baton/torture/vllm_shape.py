"""The processes of a run with vLLM servers as workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from baton_serve.baton.cluster.cluster import REDIS
from baton_serve.baton.cluster.process import ROUTER, ProcessSpec, Startable, VllmSpec
from baton_serve.baton.demo import MODEL_DIR, MODEL_NAME
from baton_serve.baton.processes.vllm.connectors import BATON, STOCK, Connector
from baton_serve.baton.processes.vllm.extra_args import ExtraArgs
from baton_serve.baton.processes.vllm.program import VllmProgram, find_vllm
from baton_serve.baton.processes.vllm.server import ServerPlace, ServerShare, VllmModel
from baton_serve.baton.torture.clients.questions import make_questions
from baton_serve.baton.torture.clients.reference import answer_all
from baton_serve.baton.torture.records import Question
from baton_serve.router.vllm.engine.continuing import can_continue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from baton_serve.baton.processes.vllm.held_ports import HeldPorts
    from baton_serve.baton.torture.records import ClientAnswer

#: Seconds for which P keeps blocks that nobody renews: what a killed router has left behind is soon free. Servers that
#: share few cores stand still for seconds now and then, which must not end most leases.
LEASE_DURATION_S = 15
MAX_NUM_SEQS = 16
ARGS = f"--max-model-len 4096 --max-num-seqs {MAX_NUM_SEQS} --block-size 32"
#: As ``schedule.FREQUENCIES``. A server takes a minute to start, a router a second, so most kills are of routers. A
#: rank is the server's engine, which is killed while its HTTP port lives.
FREQUENCIES = {
    ("kill", "decode"): 18,
    ("rank", "decode"): 6,
    ("kill", "prefill"): 12,
    ("rank", "prefill"): 4,
    ("kill", ROUTER): 40,
    ("stop", ROUTER): 5,
    ("kill", REDIS): 6,
    ("empty", REDIS): 4,
}
#: Average seconds between two faults, so that servers come up again between them.
PAUSE_S = 5.0


@dataclass(frozen=True)
class VllmShape:
    """How many servers and routers there are, and where the servers listen, the prefill servers first."""

    program: VllmProgram
    places: tuple[ServerPlace, ...]
    vllm: str | None = None
    prefill: int = 2
    decode: int = 2
    routers: int = 2
    connector: Connector = BATON
    #: The run shares few cores with its servers, which keep all of them busy.
    late_s: ClassVar[float] = 5.0

    @property
    def specs(self) -> dict[str, Startable]:
        """How each process except Redis is started, by name."""
        named: dict[str, Startable] = {}
        for number, place in enumerate(self.places):
            is_prefill = number < self.prefill
            name = f"prefill-{number}" if is_prefill else f"decode-{number - self.prefill}"
            named[name] = self._server("prefill" if is_prefill else "decode", place)
        return named | {f"{ROUTER}-{number}": self._router for number in range(self.routers)}

    @property
    def flags(self) -> str:
        """The flags of ``baton torture`` for this shape."""
        where = "" if self.vllm is None else f" --vllm {self.vllm}"
        where += " --stock" if self.connector == STOCK else ""
        return f"--engine vllm{where} --prefill {self.prefill} --decode {self.decode} --routers {self.routers}"

    @property
    def frequencies(self) -> Mapping[tuple[str, str], int]:
        """How often each fault is drawn."""
        return FREQUENCIES

    def questions(self, seed: int, count: int) -> list[Question]:
        """Questions without logprobs, as vLLM's offsets in a stream begin anew in each event, and for one text: its own
        parsers and grammars are not ours to judge.
        """
        return [_without_logprobs(question) for question in make_questions(seed, count, features=False)]

    async def answers(self, folder: Path, questions: Sequence[Question]) -> dict[int, ClientAnswer]:
        """What one server answers when nothing else runs, by the number of the question."""
        return await answer_all(folder, questions, {"reference": self._server("decode", self.places[-1])})

    def can_continue(self, question: Question) -> bool:
        """Whether the router promises that a broken stream with the answer goes on."""
        return can_continue(question.body)

    def _server(self, role: str, place: ServerPlace) -> VllmSpec:
        model = VllmModel(str(MODEL_DIR), LEASE_DURATION_S, MODEL_NAME, ExtraArgs(ARGS), self.connector)
        return VllmSpec(role, self.program, model, place, ServerShare(threads=1))

    @property
    def _router(self) -> ProcessSpec:
        addresses = [place.router_address(MAX_NUM_SEQS) for place in self.places]
        lists = {"prefill": ",".join(addresses[: self.prefill]), "decode": ",".join(addresses[self.prefill :])}
        lease = {"vllm-lease-duration-s": LEASE_DURATION_S}
        return ProcessSpec(ROUTER, {"port": 0, "log-requests": True, **lists, **lease})


def make_vllm_shape(
    vllm: str | None, prefill: int, decode: int, routers: int, ports: HeldPorts, connector: Connector
) -> VllmShape:
    """The shape, with the vLLM of ``--vllm``. Raises VllmError."""
    program = find_vllm(vllm)
    program.check_connector(connector)
    places = tuple(ServerPlace(ports.take(), ports.take(), ports.take()) for _ in range(prefill + decode))
    return VllmShape(program, places, vllm, prefill, decode, routers, connector)


def _without_logprobs(question: Question) -> Question:
    body = {name: value for name, value in question.body.items() if name not in {"logprobs", "top_logprobs"}}
    return Question(question.number, question.chat, body)
