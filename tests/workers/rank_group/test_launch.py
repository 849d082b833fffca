"""Cleaning up is not cut short."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.workers.rank_group.launch import run_to_completion


async def test_what_must_end_ends_before_the_cancellation_does() -> None:
    go, done = asyncio.Event(), []

    async def work() -> None:
        await go.wait()
        done.append(True)

    task = asyncio.create_task(run_to_completion(work()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done


async def test_an_error_in_it_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run_to_completion(work())
