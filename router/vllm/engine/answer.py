"""The answer of a vLLM server that prefilled."""

from __future__ import annotations

from baton_serve.core.leases.ids import check_id
from baton_serve.router.engines.legs import PrefillLeg
from baton_serve.router.engines.prefill_answer import PrefillAnswer
from baton_serve.router.request.client_request import ClientRequest
from baton_serve.router.vllm.engine.blocks import lacks_block
from baton_serve.router.vllm.leases.notices import check_lease_id
from baton_serve.router.vllm.leases.remote_engine import RemoteEngine


class VllmAnswer(PrefillAnswer):
    """P's token is not used, since only D's parsers of tools and reasoning see the whole answer: D samples it again."""

    __slots__ = ("_is_readable", "asked_ms", "prompt_token_ids", "where")

    def __init__(self, body: bytes, leg: PrefillLeg) -> None:
        """``leg``: what P had been sent. Raises ValueError."""
        super().__init__(body, hand_off=leg.hand_off)
        #: When P was asked, by the clock of the leases, ms.
        self.asked_ms = leg.asked_ms
        #: JSON list of the prompt's token ids; empty: P did not send them.
        self.prompt_token_ids = self._prompt_token_ids()
        #: The engine that holds the blocks; None: P holds none.
        self.where = self._engine()
        params = self.kv_transfer_params
        self._is_readable = params is None or not lacks_block(params)

    def _prompt_token_ids(self) -> bytes:
        """They are beside the choices of a chat, in the only choice of a completion."""
        for ids in (bytes(self._answer.prompt_token_ids), bytes(self._choice.prompt_token_ids)):
            if ids[:1] == b"[":
                return ids
        return b""

    def _engine(self) -> RemoteEngine | None:
        if self.kv_transfer_params is None:
            return None
        told = self.summary
        if not told.remote_request_id:  # D would read without a deadline
            raise ValueError("kv_transfer_params without remote_request_id are another version's of vLLM than 0.32")
        check_lease_id(told.remote_request_id)
        if told.lease_id:  # one in Redis, whose keys have both ids
            check_id(told.remote_engine_id)
            check_id(told.lease_id)
        return RemoteEngine(
            engine_id=told.remote_engine_id,
            host=told.remote_host,
            port=told.remote_port,
            handshake_port=told.handshake_port,
            tp_size=told.tp_size,
            pp_size=told.pp_size,
            dcp_size=told.dcp_size,
        )

    @property
    def has_first_token(self) -> bool:
        """Never one that the client is sent."""
        return False

    @property
    def is_readable(self) -> bool:
        """Whether P has kept all that a D may look at, or has handed nothing over."""
        return self._is_readable

    def is_whole(self, _asked: ClientRequest) -> bool:
        """Never: "stop" may come from a parser that saw one token only."""
        return False
