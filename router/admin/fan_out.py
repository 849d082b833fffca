"""Asks all other routers the same question, and parses their answers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import BaseModel, Field, ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton_serve.router.peers.port import PeerAnswer, PeerRouters

log = logging.getLogger("baton.router")

AnswerT = TypeVar("AnswerT", bound=BaseModel)


class FromAllRouters(BaseModel):
    """An answer made of parts from every router."""

    unreachable_routers: list[str] = Field(
        default=[], description="Ids of the routers that did not answer: their share is missing."
    )


@dataclass
class PeerAnswers(Generic[AnswerT]):
    """The answers, and the ids of the routers that did not answer."""

    answers: list[AnswerT] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)


async def ask_all(
    peers: PeerRouters, kind: type[AnswerT], method: str, path: str, body: bytes = b""
) -> PeerAnswers[AnswerT]:
    """Ask all other routers at once."""
    return parse_answers(kind, await peers.gather(method, path, body))


def parse_answers(kind: type[AnswerT], answers: Iterable[PeerAnswer]) -> PeerAnswers[AnswerT]:
    """Parse the answers. A refusal, or an answer that is no ``kind`` (another version), counts as no answer."""
    heard: PeerAnswers[AnswerT] = PeerAnswers()
    for answer in answers:
        try:
            if not answer.ok:
                raise ValueError(answer.error or f"status {answer.status}")
            heard.answers.append(kind.model_validate_json(answer.body))
        except (ValueError, ValidationError) as error:
            log.warning("router %s did not do its share: %s", answer.router_id, str(error).partition("\n")[0])
            heard.unreachable.append(answer.router_id)
    return heard
