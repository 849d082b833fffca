"""Workers that hang or are killed are lost; workers that are told to stop are not."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.kits.whole.stack import Stack, eventually

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
async def test_only_those_that_did_not_drain_are_lost(tmp_path: Path) -> None:
    async with Stack(tmp_path, prefill=2, decode=1) as stack:

        async def known_and_lost() -> tuple[int, list[str]]:
            answer = (await stack.http.get(f"{stack.router.url}/admin/workers")).json()
            return len(answer["workers"]), [one["url"] for one in answer["lost"]]

        async def until(num_known: int, *lost: str) -> None:
            async def told() -> bool:
                return await known_and_lost() == (num_known, list(lost))

            await eventually(told)

        await stack.routable(3)
        await stack.stop_worker("prefill-0")
        await until(2)
        stack.cluster.signal("prefill-1", signal.SIGINT)
        await until(1)
        d = stack.workers["decode-0"]
        stack.cluster.signal("decode-0", signal.SIGSTOP)
        await until(0, d.url)
        stack.cluster.signal("decode-0", signal.SIGCONT)
        await until(1)
        stack.cluster.signal("decode-0", signal.SIGKILL)
        await until(0, d.url)
        assert await stack.metric("router", "baton_router_workers_lost_total", role="decode") == 2
        assert await stack.metric("router", "baton_router_workers_lost_total", role="prefill") == 0
