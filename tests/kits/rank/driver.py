"""Drive a runner as a scheduler would: several sequences at once, odd chunks, blocks in no order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from msgspec import convert
from peft import PeftModel
from transformers import AutoModelForCausalLM

from baton_serve.core.protocol.steps import NewSequence, PromptScores, Row, Sampled, SamplingParams, Step, StepResult
from baton_serve.workers.rank.cache.kv_cache import KVCache
from baton_serve.workers.rank.grammar.library import GrammarLibrary
from baton_serve.workers.rank.graphs.cuda_recorder import Recorder
from baton_serve.workers.rank.graphs.decode_graphs import DecodeGraphs
from baton_serve.workers.rank.loading.model import ModelShard, load_model
from baton_serve.workers.rank.runner import Runner
from baton_serve.workers.rank_protocol.spec import RankSpec
from baton_serve.workers.transfer.versions import VersionTable

GREEDY = SamplingParams(temperature=0.0)
NUM_BLOCKS = 256


def load(
    folder: Path | str,
    device: str = "cpu",
    block_size: int = 16,
    dtype: str = "float32",
    adapters: dict[str, Path] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **fields: Any,
) -> ModelShard:
    fields |= {"model": str(folder), "engine_id": "e", "device": device, "dtype": dtype, "block_size": block_size}
    fields["adapters"] = {name: str(path) for name, path in (adapters or {}).items()}
    return load_model(convert(fields, RankSpec), progress)


@dataclass
class Job:
    """One sequence to run: its chunks are ``chunk`` tokens long until the prompt is through."""

    prompt: list[int]
    num_new: int
    sampling: SamplingParams = GREEDY
    chunk: int = 7
    #: Fingerprint of the adapter.
    adapter: str = ""
    outputs: list[int] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    scores: list[PromptScores] = field(default_factory=list)
    done: int = 0
    blocks: list[int] = field(default_factory=list)
    started: bool = False

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.outputs)

    @property
    def finished(self) -> bool:
        return len(self.sampled) >= self.num_new


class Planner:
    """Owns a shuffled pool of free blocks and says what comes next."""

    def __init__(self, block_size: int, num_blocks: int = NUM_BLOCKS, seed: int = 0) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))
        random.Random(seed).shuffle(self.free)
        self.step_id = 0

    def plan(self, jobs: list[Job]) -> Step:
        """One step over all jobs that are not finished."""
        started, rows = [], []
        for seq, job in enumerate(jobs):
            if job.finished:
                continue
            if not job.started:
                job.started = True
                known = (job.prompt, list(job.outputs), job.sampling, list(job.blocks))
                started.append(NewSequence(seq, *known, adapter=job.adapter))
            rows.append(self._row(seq, job))
        self.step_id += 1
        return Step(self.step_id, [], [], started, rows)

    def record(self, jobs: list[Job], result: StepResult) -> None:
        """Give the jobs what was sampled."""
        assert result.step_id == self.step_id
        for one in result.sampled:
            jobs[one.seq].sampled.append(one)
            jobs[one.seq].outputs.append(one.token)
        for scores in result.scores:
            jobs[scores.seq].scores.append(scores)

    def preempt(self, job: Job) -> None:
        """Take the job's blocks away, as the scheduler does when there are none left; it starts over elsewhere."""
        self.free = job.blocks + self.free
        random.Random(self.step_id).shuffle(self.free)
        job.blocks, job.done, job.started = [], 0, False

    def _row(self, seq: int, job: Job) -> Row:
        count = min(job.chunk, job.known - job.done)
        end = job.done + count
        needed = -(-end // self.block_size) - len(job.blocks)
        fresh = [self.free.pop() for _ in range(max(0, needed))]
        job.blocks += fresh
        row = Row(seq, job.done, count, fresh, end == job.known, self._score_from(job, end))
        job.done = end
        return row

    def _score_from(self, job: Job, end: int) -> int:
        """The first token that no row has scored, if this one can."""
        if job.sampling.num_prompt_logprobs is None:
            return 0
        num_scored = 1 + sum(len(scores.logprobs) for scores in job.scores)
        first = max(job.done + 1, num_scored)
        return first if first <= min(end, len(job.prompt) - 1) else 0


class Driver(Planner):
    """Runs jobs on a runner in this process."""

    def __init__(
        self,
        model: ModelShard,
        *,
        num_blocks: int = NUM_BLOCKS,
        seed: int = 0,
        recorder: Recorder | None = None,
        sizes: Sequence[int] = (1, 2, 4, 8),
    ) -> None:
        """With a recorder, decode steps of at most ``sizes[-1]`` rows are graphs."""
        super().__init__(model.cache_shape.block_size, num_blocks, seed)
        self.cache = KVCache(model.cache_shape, num_blocks, model.device, with_spare=recorder is not None)
        self.versions = VersionTable(num_blocks)
        graphs = None
        if recorder is not None:
            assert model.kernel is not None
            graphs = DecodeGraphs(model, model.kernel, self.cache, recorder, sizes)
        self.runner = Runner(model, self.cache, self.versions, GrammarLibrary(print, model.vocab_size), graphs=graphs)

    def run(self, jobs: list[Job]) -> list[list[int]]:
        """Run until all are finished; what each sampled."""
        while any(not job.finished for job in jobs):
            self.advance(jobs)
        return [[one.token for one in job.sampled] for job in jobs]

    def advance(self, jobs: list[Job]) -> None:
        """One step."""
        self.record(jobs, self.runner.execute(self.plan(jobs)))


class Reference:
    """Plain transformers on the same weights, and peft with an adapter."""

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        if adapter is not None:
            self.model = PeftModel.from_pretrained(self.model, adapter).eval()
        self.model.generation_config.eos_token_id = None
        self.vocab_size: int = self.model.config.vocab_size

    def generate(self, prompt: list[int], num_new: int) -> list[int]:
        ids = torch.tensor([prompt])
        out = self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_new, pad_token_id=0
        )
        tokens: list[int] = out[0, len(prompt) :].tolist()
        return tokens

    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Of the token after ``tokens``."""
        return self.all_logprobs(tokens)[-1]

    def all_logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Of the token after each of ``tokens``."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(torch.tensor([tokens])).logits[0]
        return logits.log_softmax(-1)


def prompt(length: int, seed: int, vocab_size: int = 384) -> list[int]:
    return random.Random(f"{length} {seed}").choices(range(2, vocab_size), k=length)
