"""Several ranks as one engine: the tokens of one rank, and one end for all of them."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from baton_serve.core.process.frames import encode
from baton_serve.core.protocol.steps import NewSequence, Row, SamplingParams, Step, ToRank
from baton_serve.workers.rank_group import group as group_module
from baton_serve.workers.rank_group.first_failure import FirstFailure
from baton_serve.workers.rank_group.group import RankGroup
from baton_serve.workers.rank_group.link import STOP_GRACE_S, RankLink
from baton_serve.workers.rank_protocol.errors import RankStartError
from baton_serve.workers.rank_protocol.spec import RankSpec
from tests.kits import tiny_adapters, tiny_models
from tests.kits.rank.driver import Driver, Job, load, prompt
from tests.kits.rank.group_driver import ENVIRON, GroupDriver, children, gone, spec_of
from tests.kits.rank.models import Folders

SEEDED = SamplingParams(temperature=1.0, top_p=0.95, seed=7)
WITH_LOGPROBS = SamplingParams(temperature=0.0, num_logprobs=3, num_prompt_logprobs=2)


def jobs() -> list[Job]:
    """Short and long, in chunks and whole, some decoding while others still prefill; greedy and seeded."""
    return [
        Job(prompt(3, 20), 16),
        Job(prompt(70, 20), 10, chunk=13),
        Job(prompt(40, 21), 12, SEEDED, chunk=1000),
        Job(prompt(90, 22), 6, SEEDED, chunk=11),
        Job(prompt(17, 23), 6, WITH_LOGPROBS),
    ]


async def check_like_one_rank(folder: Path, num_ranks: int, adapter: Path | None = None) -> None:
    """With an adapter, it computes every second sequence."""
    adapters = {} if adapter is None else {"a": adapter}
    whole = load(folder, adapters=adapters)
    expected, got = jobs(), jobs()
    for job in [*expected[::2], *got[::2]]:
        job.adapter = whole.adapters.names.get("a", "")
    Driver(whole).run(expected)
    driver = GroupDriver(num_ranks)
    spec = replace(spec_of(folder, num_ranks), adapters={name: str(path) for name, path in adapters.items()})
    group = await driver.start(spec)
    try:
        assert await driver.run(group, got) == [job.outputs for job in expected]
        assert len({tuple(job.outputs) for job in got}) == len(got), "the prompts must matter"
        for mine, theirs in zip(got[-1].sampled, expected[-1].sampled, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
            assert [token for token, _ in mine.top or ()] == [token for token, _ in theirs.top or ()]
        for ours, other in zip(got[-1].scores, expected[-1].scores, strict=True):
            assert (ours.start, ours.ranks, ours.top_tokens) == (other.start, other.ranks, other.top_tokens)
            assert ours.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        heads = whole.cache_shape.num_kv_heads
        for rank, ready in enumerate(group.readies):
            shard = ready.metadata.shard
            assert (shard.first_layer, shard.last_layer) == (0, whole.cache_shape.num_layers)
            assert (shard.first_head, shard.last_head) == (
                rank * heads // num_ranks,
                (rank + 1) * heads // num_ranks,
            )
            assert ready.block_bytes * num_ranks == whole.cache_shape.block_bytes
            assert (ready.compatibility.num_kv_heads, ready.compatibility.num_layers) == (heads, shard.last_layer)
            assert ready.compatibility.weights_fingerprint == whole.weights_fingerprint
            assert ready.adapters == whole.adapters.names
        assert any(line.startswith(f"rank 0 of {num_ranks}: loaded") for line in driver.progress)
        assert not any(line.startswith("rank 1") for line in driver.progress)
    finally:
        await group.stop()
    assert not driver.deaths


@pytest.mark.parametrize(
    "architecture", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3", "mixtral"))]
)
async def test_two_ranks_give_the_tokens_of_one(architecture: str, folder_of: Folders, tmp_path: Path) -> None:
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"] if architecture == "mixtral" else "all-linear"
    adapter = tiny_adapters.build(tmp_path, folder_of(architecture), target_modules=targets)
    await check_like_one_rank(folder_of(architecture), 2, adapter)


async def test_all_ranks_go_on_with_what_rank_0_samples(folder_of: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 has another seed, as if its logits differed in a rounding."""
    folder, sent, altered = folder_of("llama"), RankLink.send_frame, list[Step]()

    def send_frame(link: RankLink, frame: bytes) -> None:
        message = msgspec.msgpack.decode(frame[4:], type=ToRank)  # behind its length
        if "rank 1" in repr(link) and isinstance(message, Step):
            started = [replace(new, sampling=replace(SEEDED, seed=8)) for new in message.started]
            frame = encode(replace(message, started=started))
            altered.extend([message] if started else [])
        sent(link, frame)

    monkeypatch.setattr(RankLink, "send_frame", send_frame)
    expected, got = Job(prompt(40, 21), 12, SEEDED), Job(prompt(40, 21), 12, SEEDED)
    Driver(load(folder)).run([expected])
    driver = GroupDriver(2)
    group = await driver.start(spec_of(folder, 2))
    try:
        assert await driver.run(group, [got]) == [expected.outputs]
        assert len(altered) == 1
    finally:
        await group.stop()


@pytest.mark.slow
async def test_four_ranks_give_the_tokens_of_one(tmp_path: Path) -> None:
    folder = tiny_models.build(tmp_path, "qwen2", num_key_value_heads=4, tie_word_embeddings=True)
    await check_like_one_rank(folder, 4)


@pytest.mark.slow
async def test_a_rank_that_is_killed_in_a_step_ends_all_at_once(folder_of: Folders) -> None:
    driver = GroupDriver(2)
    group = await driver.start(spec_of(folder_of("llama"), 2))
    pids = group.pids
    os.kill(pids[1], signal.SIGSTOP)
    group.send(Step(1, [], [], [NewSequence(1, [5, 6, 7], [], SEEDED, [3])], [Row(1, 0, 3, [], True)]))
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    await driver.died.wait()
    group.send(Step(2, [], [], [], []))
    await group.stop()
    await group.stop()
    assert time.monotonic() - began < STOP_GRACE_S, "nobody waits for a rank to leave that waits for a dead one"
    assert driver.deaths == ["rank 1 was killed by signal 9"]
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
async def test_a_rank_that_is_killed_while_loading_ends_the_start(folder_of: Folders) -> None:
    before, driver = children(), GroupDriver(2)
    start = asyncio.create_task(driver.start(spec_of(folder_of("llama"), 2)))
    await driver.loading.wait()
    pids = sorted(children() - before)
    assert len(pids) == 2
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RankStartError, match=r"^rank [01] was killed by signal 9 before it was ready$"):
        await start
    assert all(gone(pid) for pid in pids)
    assert not driver.deaths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_ranks", "fields", "reason"),
    [
        (
            3,
            {},
            "model type 'llama' cannot be split over 3 ranks: "
            "3 ranks do not divide its 4 attention heads and its 2 KV heads",
        ),
        (2, {"vocab_size": 383}, r"cannot load the weights of .*`lm_head` \(383\) must be divisible .*"),
    ],
)
async def test_a_model_that_cannot_be_split_ends_the_group_with_one_line(
    num_ranks: int, fields: dict[str, int], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_models.build(tmp_path / "model", "llama", **fields)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    before, driver = children(), GroupDriver(num_ranks)
    with pytest.raises(RankStartError, match=f"^{reason}$"):
        await driver.start(spec_of(folder, num_ranks))
    assert all(gone(pid) for pid in children() - before)
    assert list((tmp_path / "tmp").iterdir()) == [], "the rendezvous is gone"


@pytest.mark.slow
async def test_a_rank_whose_siblings_never_come_gives_up(folder_of: Folders, tmp_path: Path) -> None:
    spec = replace(spec_of(folder_of("llama"), 2), rendezvous=str(tmp_path / "rendezvous"), join_timeout_s=0.1)
    with pytest.raises(RankStartError, match="lost another rank before it was ready") as caught:
        await RankLink.start(spec, lambda event: None, environ=ENVIRON, name="rank 0")
    assert caught.value.in_consequence


class OneThatLostAnother(RankLink):
    """Rank 0 is ready at once; rank 1 has lost a sibling, whose own end nobody has heard of. No processes."""

    def __init__(self, spec: RankSpec) -> None:
        self.rank = spec.rank
        self.stopped = False

    @classmethod
    async def start(cls, spec: RankSpec, *_: object, **__: object) -> OneThatLostAnother:
        if spec.rank:
            raise RankStartError("rank 1 lost another rank before it was ready", in_consequence=True)
        return cls(spec)

    @property
    def exit_status(self) -> int:
        return 0

    def kill(self) -> None:
        self.stopped = True

    async def stop(self) -> None:
        assert self.stopped


async def test_a_start_that_failed_in_consequence_is_told_when_all_others_are_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "RankLink", OneThatLostAnother)
    # Long enough to be still held back when every start is over.
    monkeypatch.setattr(group_module, "FirstFailure", functools.partial(FirstFailure, grace_s=0.05))
    with pytest.raises(RankStartError, match=r"^rank 1 lost another rank before it was ready$"):
        await RankGroup.start(spec_of("m", 2), lambda rank, event: None)


@pytest.mark.slow
async def test_a_group_of_one_is_a_rank_alone(folder_of: Folders) -> None:
    driver = GroupDriver(1)
    group = await driver.start(spec_of(folder_of("llama"), 1))
    assert any(line.startswith("KV cache") for line in driver.progress)
    os.kill(group.pids[0], signal.SIGKILL)
    await driver.died.wait()
    assert driver.deaths == ["the rank process was killed by signal 9"]
    await group.stop()
