"""What a worker aborted although nobody here wanted it to: it is tried again.

Who ends a request here, a client, an administrator or a deadline, cancels its task and so closes the connection: what
the worker says then is never read. An ``aborted`` that is read was for another reason. The other routers had given this
one up, since it stood still; then workers end what it has there, and take nothing of it for two more seconds. Or an
abort of an earlier attempt came late. Either way nobody failed, so no attempt counts; and the retry budget is asked
once for all tries of a request, since those that are refused cost nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from router.try_again import may_try_again
from router.worker_errors import ABORTED

if TYPE_CHECKING:
    from protocol.errors import ApiError
    from router.exchange import Exchange

#: Seconds before each further try: at once where the abort is all there was; together longer than workers refuse a
#: router that was given up (``REFUSE_GONE_S``), from the last moment on at which the others tell them
#: (``TELL_GONE_S``, both in ``protocol.router``).
WAITS_S = (0.1, 0.3, 0.6, 1.0, 1.6)


def is_aborted(error: ApiError) -> bool:
    """The worker ended, or did not take, a request that it was told to end."""
    return error.code == ABORTED


async def wait_out(x: Exchange, error: ApiError) -> None:
    """Until it may be tried again; it holds no place meanwhile. Raises what the client is told if it may not."""
    if x.num_aborted >= len(WAITS_S):
        raise error
    may_try_again(x, error, None)
    x.num_aborted += 1
    await asyncio.sleep(WAITS_S[x.num_aborted - 1])
