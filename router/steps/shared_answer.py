"""What the choices of a prompt share once P has answered one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from baton_serve.router.engines.prefill_answer import PrefillAnswer
    from baton_serve.router.pool import Worker
    from baton_serve.router.request.choices.shared_lease import SharedLease


class SharedAnswer(NamedTuple):
    """P's answer to one choice of a prompt, whose blocks the other choices read too."""

    answer: PrefillAnswer
    worker: Worker
    lease: SharedLease
