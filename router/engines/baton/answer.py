"""P's answers that may grant a lease in Redis."""

from __future__ import annotations

import msgspec

from baton_serve.core.leases.ids import check_id
from baton_serve.core.net.client.connection import Pieces
from baton_serve.core.protocol.handoff import HandOffSummary, reader_name
from baton_serve.router.engines.prefill_answer import PrefillAnswer
from baton_serve.router.request.client_request import ClientRequest


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

    __slots__ = ("_common",)

    def __init__(self, body: bytes, *, hand_off: bool) -> None:
        super().__init__(body, hand_off=hand_off)
        self._common = b""

    def common_params(self) -> bytes:
        """The parameters that all other readers of the blocks have in common, without the closing brace.

        They may have megabytes, and there may be hundreds of readers: it is made once.
        """
        if not self._common:
            fields = msgspec.json.decode(self.kv_transfer_params or b"{}", type=dict[str, msgspec.Raw])
            fields.pop("lease_id", None)
            own = {"first_token": -1, "first_logprobs": None, "seed": None}
            self._common = msgspec.json.encode({**fields, **own})[:-1]
        return self._common

    def is_whole(self, asked: ClientRequest) -> bool:
        """Whether the first token ended the sequence, or a second one is not allowed or does not fit."""
        is_full = self.kv_transfer_params is None and self._choice.finish_reason == "length"
        return is_full or super().is_whole(asked)


class ReaderAnswer(PrefillAnswer):
    """The answer for a choice that reads the blocks of another choice's answer: it has no first token yet."""

    __slots__ = ("_tail",)

    def __init__(self, common: bytes, summary: HandOffSummary, reader: int) -> None:
        """``common``: see ``common_params``. ``summary``: of the other choice. ``reader``: this one's number."""
        name = reader_name(summary.lease_id, reader)
        self._hand_off = True
        self.summary = msgspec.structs.replace(summary, first_token=-1, lease_id=name)
        self.kv_transfer_params = common
        self._tail = b',"lease_id":%b}' % msgspec.json.encode(name)

    def params(self) -> Pieces:
        return (self.kv_transfer_params or b"", self._tail)

    def is_whole(self, asked: ClientRequest) -> bool:
        """Never: D samples all of its tokens."""
        return False

    def forget_answer(self) -> None:
        """There is nothing but what D needs."""
