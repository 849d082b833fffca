"""Which part of a request this worker does (P's, D's, or all that is left), and what the client has already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from baton_serve.core.protocol.errors import BadRequestError, UpstreamError
from baton_serve.core.protocol.handoff import KVTransferParams, Resume
from baton_serve.workers.engine.api import EngineRequest
from baton_serve.workers.server.answers import transfer_params
from baton_serve.workers.server.identity import Identity


@dataclass(frozen=True)
class RequestLeg:
    """One leg of a request.

    ``hand_off`` is set on P's leg, ``remote`` on D's leg. If neither is set, the leg is all that is left of the
    request. ``resume`` has the tokens that the client has already, in a migration to a worker that computes the prompt.
    """

    hand_off: bool = False
    remote: KVTransferParams | None = None
    resume: Resume | None = None
    #: How many choices read the blocks of this P's lease.
    num_readers: int = 1

    @property
    def given(self) -> list[int]:
        """Output tokens that the client has from another worker. They are not shown again."""
        if self.remote is not None:
            return self.remote.output_token_ids
        return [] if self.resume is None else self.resume.token_ids

    @property
    def has_first_token(self) -> bool:
        """Whether this is D's leg, and P has sampled a token."""
        return self.remote is not None and self.remote.first_token >= 0

    @property
    def has_begun(self) -> bool:
        """Whether the client already has the beginning of the answer."""
        return self.has_first_token or self.resume is not None or bool(self.given)

    @property
    def created(self) -> int:
        """When the answer was created, in Unix seconds, as the client has already received it; 0: it has not."""
        origin = self.remote or self.resume
        return 0 if origin is None else origin.created

    def check(self, request: EngineRequest, identity: Identity) -> None:
        """Raise BadRequestError unless at least one token is left to sample after ``given``, and UpstreamError if these
        are another adapter's.
        """
        if self.resume is not None and self.resume.adapter != request.adapter:
            raise UpstreamError(
                "This worker has another adapter than the one that computed the tokens so far.", code="other_adapter"
            )
        if self.given:
            self._check_given(request, identity)
        if self.has_first_token and request.max_tokens < len(self.given) + 2:
            raise BadRequestError("P's first token leaves nothing to decode.", param="max_tokens", code="invalid_value")

    def _check_given(self, request: EngineRequest, identity: Identity) -> None:
        tokens, fit = self.given, identity.max_model_len
        if max(tokens) >= identity.vocab_size:
            raise self._bad(f"must be below {identity.vocab_size}, the size of the vocabulary")
        num_taken = len(request.prompt_token_ids) + len(tokens)
        if num_taken >= fit:
            raise self._bad(f"leave no room: with the prompt they are {num_taken} tokens, and {fit} fit")
        for index, token in enumerate(tokens):
            if token in request.stop_token_ids:
                raise self._bad(f"have the stop token {token} at {index}: that request was over")
        if len(tokens) >= request.max_tokens:
            raise self._bad(f"are {len(tokens)} of {request.max_tokens} tokens at most: that request was over")

    def has_stop_string(self) -> BadRequestError:
        """The error for a leg whose ``given`` tokens contain a stop string in their text."""
        return self._bad("contain a stop string: that request was over")

    def _bad(self, complaint: str) -> BadRequestError:
        name = "resume.token_ids" if self.remote is None else "output_token_ids"
        return transfer_params.bad(f"{name} {complaint}")


def leg_of(body: dict[str, Any]) -> RequestLeg:
    """The leg that the body's ``kv_transfer_params`` ask for. Raises BadRequestError."""
    raw = body.get(transfer_params.PARAM)
    if raw is None:
        return RequestLeg()
    if not isinstance(raw, dict):
        raise BadRequestError(
            f"Invalid type for '{transfer_params.PARAM}': expected an object.",
            param=transfer_params.PARAM,
            code="invalid_type",
        )
    params = transfer_params.parse(raw)
    if isinstance(params, KVTransferParams):
        return RequestLeg(remote=params)
    return RequestLeg(hand_off=params.do_remote_decode, resume=params.resume, num_readers=params.num_readers)
