"""Asks other routers the same question, and reads what they answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from baton_serve.router.peers.port import PeerAnswer, PeerRouters

log = logging.getLogger("baton.router")

T = TypeVar("T")


class DecodedAnswers(NamedTuple, Generic[T]):
    """``answers`` by the ids of the routers; ``errors``: one line on why another router has given none."""

    answers: dict[str, T]
    errors: dict[str, str]

    @property
    def unreachable(self) -> list[str]:
        """The ids of the routers that have not answered."""
        return list(self.errors)


async def ask_all(peers: PeerRouters, kind: type[T], method: str, path: str, body: bytes = b"") -> DecodedAnswers[T]:
    """Ask all other routers at once for a ``kind``, and log which of them did not answer."""
    heard = read(kind, await peers.gather(method, path, body))
    for router_id, error in heard.errors.items():
        log.warning("router %s did not do its share: %s", router_id, error)
    return heard


async def ask_some(peers: PeerRouters, router_ids: Iterable[str], kind: type[T], path: str) -> DecodedAnswers[T]:
    """Ask these routers at once for a ``kind``. A router that is no longer known has died, and is not missed."""
    answers = await asyncio.gather(*(peers.ask(router_id, "GET", path) for router_id in router_ids))
    return read(kind, (answer for answer in answers if answer is not None))


def read(kind: type[T], answers: Iterable[PeerAnswer]) -> DecodedAnswers[T]:
    """Read the answers. A refusal, or an answer that is no ``kind`` (another version), counts as none."""
    heard: DecodedAnswers[T] = DecodedAnswers({}, {})
    for answer in answers:
        if not answer.ok:
            heard.errors[answer.router_id] = answer.error or f"HTTP {answer.status}"
            continue
        try:
            heard.answers[answer.router_id] = msgspec.json.decode(answer.body, type=kind)
        except (ValueError, RecursionError) as error:
            heard.errors[answer.router_id] = f"it answers in another way, as another version does: {error}"
    return heard
