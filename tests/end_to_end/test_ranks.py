"""P and D of any number of ranks: whoever reads from whom, the tokens are those of one undivided model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from baton_serve.baton.demo.training.questions import QUESTIONS
from baton_serve.core.protocol.handshake import Handshake, RankMetadata
from tests.kits import tiny_models
from tests.kits.whole import reference
from tests.kits.whole.stack import Stack

pytestmark = pytest.mark.slow

NUM_TOKENS = 20
LENGTHS = [1, 15, 16, 17, 100, 700]
#: The demo model has 4 kv heads: from all on one rank to one on each.
SIZES = {"one": 1, "two": 2, "four": 4}
PAIRS = [(p, d) for p in SIZES for d in SIZES if (p, d) != ("one", "one")]


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def splits(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Three engines of one, two and four ranks; each is P for one test and D for another."""
    named = {name: {"role": "both", "tp": tp, "dtype": "float32"} for name, tp in SIZES.items()}
    folder = tmp_path_factory.mktemp("splits")
    async with Stack(folder, prefill=0, decode=0, named=named, with_router=False) as running:
        yield running


async def hand_over(stack: Stack, p: str, d: str, prompt: list[int], **more: object) -> list[int]:
    params = await stack.prefill_at(p, prompt, **more)
    assert params["tp_size"] == SIZES[p]
    return await stack.decode_at(d, prompt, params, NUM_TOKENS, **more)


async def counts(stack: Stack, p: str, d: str) -> tuple[float, ...]:
    """Reads done and prompts computed on D; leases that ended by a read, and reads told after that, on P."""
    return (
        await stack.metric(d, "baton_worker_reads_total", outcome="done"),
        await stack.metric(d, "baton_worker_local_prefills_total"),
        await stack.metric(p, "baton_worker_lease_outcomes_total", outcome="done"),
        await stack.metric(p, "baton_worker_leases_late_done_total"),
    )


@pytest.mark.parametrize(("p", "d"), PAIRS, ids=[f"{p}-{d}" for p, d in PAIRS])
async def test_every_split_gives_the_tokens_of_the_undivided_model(splits: Stack, p: str, d: str) -> None:
    reads, local, freed, late = await counts(splits, p, d)
    prompts = [reference.prompt_of(length, seed=100 * length + SIZES[p] * 10 + SIZES[d]) for length in LENGTHS]
    got = [await hand_over(splits, p, d, prompt) for prompt in prompts[:3]]
    got += await asyncio.gather(*(hand_over(splits, p, d, prompt) for prompt in prompts[3:]))
    assert got == [reference.greedy(tuple(prompt), NUM_TOKENS) for prompt in prompts]
    await splits.until_idle(p, d)
    if p == d:  # the engine takes its own blocks over, nothing is read
        return
    # Every lease was freed once, by its readers and by nobody's deadline.
    assert await counts(splits, p, d) == (reads + len(prompts), local, freed + len(prompts), late)


async def test_seeded_sampling_is_the_same_for_every_split(splits: Stack) -> None:
    prompt = reference.prompt_of(90, seed=4)
    options = {"temperature": 1, "top_p": 0.9, "seed": 11}
    answers = [await hand_over(splits, p, d, prompt, **options) for p, d in [*PAIRS, ("one", "one")]]
    assert answers == [answers[0]] * len(answers)
    assert await hand_over(splits, "two", "four", prompt, **{**options, "seed": 12}) != answers[0]


async def test_logprobs_come_from_every_split(splits: Stack) -> None:
    prompt = reference.prompt_of(20, seed=9)
    bodies = [
        await splits.complete(prompt, url=splits.workers[name].url, max_tokens=4, logprobs=2, ignore_eos=True)
        for name in SIZES
    ]
    whole, *others = (body["choices"][0]["logprobs"] for body in bodies)
    for other in others:
        assert other["tokens"] == whole["tokens"]
        assert other["token_logprobs"] == pytest.approx(whole["token_logprobs"], abs=1e-3)


async def handshake(stack: Stack, name: str, rank: int) -> tuple[str, RankMetadata]:
    answer = await stack.http.get(f"{stack.workers[name].internal_url}/kv/handshake/{rank}")
    whole = msgspec.msgpack.decode(answer.content, type=Handshake)
    return whole.compatibility_hash, msgspec.msgpack.decode(whole.metadata, type=RankMetadata)


async def test_ranks_hold_equal_parts_of_one_model(splits: Stack) -> None:
    shaken = {name: [await handshake(splits, name, rank) for rank in range(tp)] for name, tp in SIZES.items()}
    assert len({digest for answers in shaken.values() for digest, _ in answers}) == 1
    (_, whole), *_ = shaken["one"]
    for name, tp in SIZES.items():
        ranks = [metadata for _, metadata in shaken[name]]
        assert [rank.shard.first_head for rank in ranks] == [4 // tp * i for i in range(tp)]
        assert {rank.block_bytes for rank in ranks} == {whole.block_bytes // tp}
        assert len({rank.agent_name for rank in ranks}) == tp == len(splits.ranks(name))
        assert (await splits.http.get(f"{splits.workers[name].internal_url}/kv/handshake/{tp}")).status_code == 404


async def test_an_interrupted_request_leaves_nothing_on_any_rank(splits: Stack) -> None:
    params = await splits.prefill_at("two", reference.prompt_of(600, seed=6))
    asking = asyncio.create_task(splits.decode_at("four", reference.prompt_of(600, seed=6), params, 2000))
    await asyncio.sleep(0)
    while not await splits.metric("four", "baton_worker_requests_running"):  # noqa: ASYNC110 (another process is asked)
        await asyncio.sleep(0.001)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await splits.until_idle("two", "four")


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(2, 1), (2, 2)])
async def test_the_router_pairs_workers_of_different_sizes(tmp_path: Path, prefill_tp: int, decode_tp: int) -> None:
    """Another architecture; the router needs not know how many ranks there are."""
    model = tiny_models.build(tmp_path / "model", "qwen3", num_key_value_heads=4, num_attention_heads=8)
    async with Stack(
        tmp_path,
        model=model,
        worker_flags={"dtype": "float32"},
        prefill_flags={"tp": prefill_tp},
        decode_flags={"tp": decode_tp},
    ) as stack:
        prompts = [[5 + (7 * i + j) % 300 for j in range(length)] for i, length in enumerate(LENGTHS)]
        got = await asyncio.gather(*(stack.tokens(prompt, max_tokens=NUM_TOKENS) for prompt in prompts))
        assert got == [reference.greedy(tuple(prompt), NUM_TOKENS, model) for prompt in prompts]
        assert await stack.metric("decode-0", "baton_worker_reads_total", outcome="done") == len(prompts)
        sizes = {row["role"]: row["tp"] for row in await stack.known_workers()}
        assert sizes == {"prefill": prefill_tp, "decode": decode_tp}
        await stack.until_idle()


async def test_the_demo_model_answers_in_bfloat16_as_on_one_rank(tmp_path: Path) -> None:
    """Sums of several ranks may differ in bfloat16's last bit; what the model has learnt stands above that."""
    flags = {"role": "both", "dtype": "bfloat16"}
    named = {"one": flags, "two": {**flags, "tp": 2}}
    async with Stack(tmp_path, prefill=0, decode=0, named=named, with_router=False) as stack:
        chats = [[{"role": "user", "content": fact.ask[0]}] for fact in QUESTIONS[:24]]
        prompts = [
            reference.tokenizer().apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats
        ]
        for prompt in prompts:
            whole = await hand_over(stack, "one", "one", prompt)
            assert await hand_over(stack, "two", "one", prompt) == whole
            assert await hand_over(stack, "one", "two", prompt) == whole
