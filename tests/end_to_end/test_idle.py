"""What people see of workers that have nothing to do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from baton_serve.router.pool import LOAD_TTL_S

if TYPE_CHECKING:
    from tests.kits.whole.stack import Stack


async def test_workers_that_have_nothing_to_do_have_no_problem(stack: Stack) -> None:
    await stack.until_idle()
    await asyncio.sleep(LOAD_TTL_S + 1)  # longer than a report counts, and no report changes
    workers = (await stack.http.get(f"{stack.router.url}/admin/workers")).json()["workers"]
    assert workers
    assert {worker["problem"] for worker in workers} == {""}
