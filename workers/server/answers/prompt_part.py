"""The part of an answer that is about its prompt, while the answer is made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from workers.server.answers.token_ids import NONE

if TYPE_CHECKING:
    from workers.engine.api import PromptOutput
    from workers.server.answers.job import Job

#: Tokens whose logprobs are made ready before other tasks of the event loop may run (about 1 ms).
NUM_TOGETHER = 64


async def add_prompt(job: Job, output: PromptOutput) -> None:
    """Add to the answer what the engine has found out about the prompt."""
    if output.scores is not None and job.shown_prompt is not None:
        for count, _ in enumerate(job.shown_prompt.add(output.scores), 1):
            if count % NUM_TOGETHER == 0:
                await asyncio.sleep(0)
    job.transcript.end_with_prompt(output)


def prompt_chunks(job: Job) -> bytes:
    """The chunks of a stream that begins with the prompt. No token of the output is named before them."""
    if job.shown_prompt is None:
        return b""
    line = b"" if job.token_ids is None else NONE
    usage, with_ids = job.transcript.usage, job.request.return_token_ids
    return b"".join(
        line + job.response.prompt(text, logprobs, usage, with_ids=with_ids)
        for text, logprobs in job.shown_prompt.parts()
    )
