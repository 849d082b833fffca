"""A task ends although the library inside it swallows a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from baton_serve.core.process.task_end import end_task
from tests.kits.patience import PATIENCE_S


async def deaf(num_swallowed: int, running: asyncio.Event) -> None:
    """Goes on after so many cancellations."""
    running.set()
    for _ in range(num_swallowed):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()


@pytest.mark.parametrize("num_swallowed", [0, 1, 3])
async def test_a_task_that_swallows_cancellations_ends(num_swallowed: int) -> None:
    running = asyncio.Event()
    task = asyncio.create_task(deaf(num_swallowed, running))
    await running.wait()
    await asyncio.wait_for(end_task(task), PATIENCE_S)
    assert task.cancelled()


async def test_ending_a_task_does_not_raise_the_tasks_error() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    task = asyncio.create_task(fail())
    await asyncio.wait({task})
    await end_task(task)


async def test_a_task_that_has_ended_by_itself_is_left_alone() -> None:
    task = asyncio.create_task(asyncio.sleep(0, "result"))
    await task
    await end_task(task)
    assert task.result() == "result"


async def test_cancelling_the_wait_is_heard() -> None:
    running = asyncio.Event()
    task = asyncio.create_task(deaf(1000, running))
    await running.wait()
    ending = asyncio.create_task(end_task(task))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    for _ in range(1001):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({task})
