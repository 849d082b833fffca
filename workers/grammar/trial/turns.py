"""In which order forms are tried: each for a moment first, so that no form waits for slow ones of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from baton_serve.workers.grammar.trial.attempt import TOO_LONG
from baton_serve.workers.grammar.trial.fairness import Places
from baton_serve.workers.grammar.trial.process import LIMITS, TrialProcess

if TYPE_CHECKING:
    from baton_serve.core.protocol.openai.structured import Form
    from baton_serve.core.protocol.steps import Vocabulary
    from baton_serve.workers.grammar.trial.messages import Limits, Tried

#: Seconds of a processor after which a form is a slow one. Most schemas take a few milliseconds.
QUICK_S = 0.1
#: Slow forms that wait or are tried, see ``Places``. Each may take two seconds: the last of all is tried
#: before a router gives up the worker (``first_byte_timeout_s``, 30).
MAX_SLOW = 12


class Turns:
    """Two processes: one for all forms, for a moment each, and one that only slow forms start. For one event loop."""

    def __init__(
        self, vocab_size: int, limits: Limits = LIMITS, *, quick_s: float = QUICK_S, max_slow: int = MAX_SLOW
    ) -> None:
        """``vocab_size`` is the model's; ``limits``: what a slow form may take."""
        brief = msgspec.structs.replace(limits, cpu_s=min(quick_s, limits.cpu_s))
        self.quick = TrialProcess(vocab_size, brief, ends_if_left=False)
        self.slow = TrialProcess(vocab_size, limits)
        self._places = Places(max_slow)

    def __repr__(self) -> str:
        return f"<Turns quick={self.quick.pid}, slow={self.slow.pid}>"

    async def try_form(self, vocabulary: Vocabulary, form: Form, client: str = "") -> Tried:
        """Try a client's form. Raises RateLimitError for one slow form too many, and OSError if no process starts.

        If this is cancelled while the form is tried as a slow one, that ends.
        """
        tried = await self.quick.try_form(vocabulary, form, client)
        if tried.error != TOO_LONG:
            return tried
        self._places.take(client)
        try:
            return await self.slow.try_form(vocabulary, form, client)
        finally:
            self._places.give_back(client)

    async def close(self) -> None:
        """End both processes. Nothing may be tried any more."""
        await self.quick.close()
        await self.slow.close()
