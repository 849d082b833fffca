"""P's answers that may grant a lease in Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from core.leases.ids import check_id
from core.protocol.handoff import HandOffSummary, reader_name
from router.engines.prefill_answer import PrefillAnswer

if TYPE_CHECKING:
    from router.request.client_request import ClientRequest


class PlainAnswer(PrefillAnswer):
    """The answer of a worker that may be one of Baton's."""

    __slots__ = ()

    def __init__(self, body: bytes, *, hand_off: bool) -> None:
        """Raises ValueError."""
        super().__init__(body, hand_off=hand_off)
        if self.summary.lease_id:
            check_id(self.summary.lease_id)
            check_id(self.summary.remote_engine_id)

    def is_whole(self, asked: ClientRequest) -> bool:
        """Whether the first token ended the sequence, or is the only one that the client wants."""
        if super().is_whole(asked):
            return True
        return self.kv_transfer_params is not None and self.has_first_token and asked.max_new_tokens == 1


class BatonAnswer(PlainAnswer):
    """The answer of one of Baton's P, which says "length" and keeps no blocks when the context is full."""

    __slots__ = ()

    def is_whole(self, asked: ClientRequest) -> bool:
        """Whether the first token ended the sequence, or a second one is not allowed or does not fit."""
        is_full = self.kv_transfer_params is None and self._choice.finish_reason == "length"
        return is_full or super().is_whole(asked)


class ReaderAnswer(PrefillAnswer):
    """What a choice knows that reads the blocks of another choice's answer: it has no first token yet."""

    __slots__ = ()

    def __init__(self, params: bytes, summary: HandOffSummary, reader: int) -> None:
        """``params`` and ``summary`` are those of the other choice; ``reader`` is this one's number."""
        name = reader_name(summary.lease_id, reader)
        self._hand_off = True
        self.summary = msgspec.structs.replace(summary, first_token=-1, lease_id=name)
        fields = msgspec.json.decode(params, type=dict[str, msgspec.Raw])
        own = {"first_token": -1, "first_logprobs": None, "seed": None, "lease_id": name}
        self.kv_transfer_params = msgspec.json.encode({**fields, **own})

    def is_whole(self, asked: ClientRequest) -> bool:
        """Never: D samples all of its tokens."""
        return False

    def forget_answer(self) -> None:
        """There is nothing but what D needs."""
