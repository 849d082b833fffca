"""The part of an answer that is about its prompt, while the answer is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton_serve.workers.server.answers.token_ids import NONE
from baton_serve.workers.server.answers.turns import in_turns

if TYPE_CHECKING:
    from baton_serve.workers.engine.api import PromptOutput
    from baton_serve.workers.server.answers.job import Job


async def add_prompt(job: Job, output: PromptOutput) -> None:
    """Add to the answer what the engine has found out about the prompt."""
    if output.scores is not None and job.shown_prompt is not None:
        async for _ in in_turns(job.shown_prompt.add(output.scores)):
            pass  # each step adds a token
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
