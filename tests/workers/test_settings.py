"""What settings become, and what is said about dangerous ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from baton_serve.core.protocol.handshake import Compatibility, RankMetadata, Shard
from baton_serve.core.protocol.steps import RankReady
from baton_serve.core.protocol.worker import Role
from baton_serve.router.settings import RouterSettings
from baton_serve.workers.engine_setup import engine_config, rank_spec, threads_per_rank, with_text_fingerprint
from baton_serve.workers.limits import MAX_RANKS
from baton_serve.workers.main import warn
from baton_serve.workers.settings import WorkerSettings

#: What some first rank says of itself.
READY = RankReady(
    rank=0,
    num_blocks=10,
    block_bytes=1024,
    max_model_len=100,
    vocab_size=32,
    compatibility=Compatibility(
        weights_fingerprint="f", kv_dtype="float32", layout="l", block_size=16, num_layers=1, num_kv_heads=2, head_dim=8
    ),
    metadata=RankMetadata(
        engine_id="e" * 32,
        rank=0,
        num_ranks=2,
        agent_metadata=b"",
        agent_name="a",
        cache_address=4096,
        cache_memory_type="DRAM",
        cache_device_id=0,
        num_blocks=10,
        block_bytes=1024,
        version_address=8192,
        shard=Shard(first_layer=0, last_layer=1, first_head=0, last_head=1),
    ),
)


def test_a_home_folder_is_expanded_once_for_all_who_load_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = WorkerSettings(model="~/models/m")
    assert settings.model == str(tmp_path / "models" / "m")
    assert settings.model_name == "m"


@pytest.mark.parametrize("model", ["org/name", "models/~m", "/models/m"])
def test_other_models_are_taken_as_they_are(model: str) -> None:
    assert WorkerSettings(model=model).model == model


def test_a_home_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="no such user"):
        WorkerSettings(model="~nobody-of-this-name/m")


@pytest.mark.parametrize("off", [True, False])
def test_a_fence_that_is_off_is_a_warning(off: bool, caplog: pytest.LogCaptureFixture) -> None:
    warn(WorkerSettings(model="m", unsafe_disable_fence=off))
    assert ("unsafe_disable_fence is on" in caplog.text) == off


@pytest.mark.parametrize("tp", [0, -1, MAX_RANKS + 1])
def test_an_engine_has_at_least_one_rank_and_no_more_than_a_hand_off_may_name(tp: int) -> None:
    with pytest.raises(ValueError, match="than or equal to"):
        WorkerSettings(model="m", tp=tp)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"device": "cpu", "attention": "in-place"}, "needs a GPU"),
        ({"device": "cpu", "decode_graphs": "on"}, "decode_graphs need a GPU"),
        ({"attention": "gather", "decode_graphs": "on"}, "decode_graphs need attention in place"),
    ],
)
def test_what_is_not_possible_is_refused_at_once(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        WorkerSettings(model="m", **wrong)


@pytest.mark.parametrize(("role", "expected"), [(Role.PREFILL, "off"), (Role.DECODE, "auto"), (Role.BOTH, "auto")])
def test_a_prefill_worker_records_no_decode_graphs_unless_it_is_told(role: Role, expected: str) -> None:
    assert rank_spec(WorkerSettings(model="m", role=role), "engine").decode_graphs == expected
    assert rank_spec(WorkerSettings(model="m", role=role, decode_graphs="on"), "engine").decode_graphs == "on"


@pytest.mark.parametrize("word", ["auto", "on", "off"])
def test_words_that_yaml_takes_for_others_are_words(word: str) -> None:
    in_file = yaml.safe_load(f"decode_graphs: {word}")
    assert WorkerSettings(model="m", **in_file).decode_graphs == word


def test_every_rank_is_told_how_many_there_are() -> None:
    spec = rank_spec(WorkerSettings(model="m", tp=3, torch_threads=7, kv_cache_bytes=1 << 20), "engine")
    assert (spec.rank, spec.num_ranks, spec.num_threads) == (0, 3, 2)
    # The budget is the worker's: a rank knows how many share it.
    assert spec.kv_cache_bytes == 1 << 20


@pytest.mark.parametrize(
    ("tp", "torch_threads", "omp", "num_cpus", "expected"),
    [
        (1, None, False, 4, None),  # a rank alone finds its own number
        (2, None, False, 4, 2),
        (4, None, False, 64, 8),
        (4, None, False, 2, 1),
        (2, None, True, 4, None),
        (2, 6, True, 4, 3),
        (4, 3, False, 4, 1),
        (1, 6, False, 4, 6),
    ],
)
def test_ranks_divide_the_threads(
    tp: int, torch_threads: int | None, omp: bool, num_cpus: int, expected: int | None
) -> None:
    settings = WorkerSettings(model="m", tp=tp, torch_threads=torch_threads)
    environ = {"OMP_NUM_THREADS": "1"} if omp else {}
    assert threads_per_rank(settings, environ, num_cpus) == expected


def test_a_read_that_hangs_is_given_up_before_the_router_gives_up_the_worker() -> None:
    worker = WorkerSettings(model="m")
    assert worker.handshake_timeout_s + worker.read_timeout_s < RouterSettings().first_byte_timeout_s


@pytest.mark.parametrize("timeout_s", [0, -1])
@pytest.mark.parametrize("name", ["read_timeout_s", "step_timeout_s"])
def test_a_read_and_a_step_get_some_time(name: str, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        WorkerSettings(model="m", **{name: timeout_s})


def test_the_engine_is_told_when_to_give_up_a_read_and_a_step() -> None:
    config = engine_config(WorkerSettings(model="m", read_timeout_s=2.5, step_timeout_s=7.5), READY)
    assert (config.read_timeout_s, config.step_timeout_s) == (2.5, 7.5)


def test_engines_pair_when_both_weights_and_tokenizer_are_the_same() -> None:
    same = with_text_fingerprint(READY, "t")
    defaults = [with_text_fingerprint(READY, "t", {"temperature": value}) for value in (0.5, 0.6)]
    others = [with_text_fingerprint(READY, "u"), with_text_fingerprint(same, "t"), *defaults]
    assert with_text_fingerprint(READY, "t").compatibility == same.compatibility
    assert with_text_fingerprint(READY, "t", {}).compatibility == same.compatibility, "as of versions without defaults"
    for other in others:
        assert other.compatibility.hash != same.compatibility.hash
        assert other.compatibility.weights_fingerprint != same.compatibility.weights_fingerprint


def test_adapters_are_folders_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = WorkerSettings(model="/models/m", lora=("sql=/adapters/sql", "org/chat:v2=~/chat", "here=a=b"))
    folders = {"sql": "/adapters/sql", "org/chat:v2": str(tmp_path / "chat"), "here": str(tmp_path / "a=b")}
    assert settings.adapters == rank_spec(settings, "e").adapters == folders
    assert WorkerSettings(model="/models/m").adapters == {}


@pytest.mark.parametrize(
    ("lora", "reason"),
    [
        (("sql",), "an adapter is name=folder"),
        (("sql=",), "an adapter is name=folder"),
        (("=/a",), "an adapter is name=folder"),
        (("a b=/a",), "an adapter is name=folder"),
        (("a\n=/a",), "an adapter is name=folder"),
        (("x" * 129 + "=/a",), "an adapter is name=folder"),
        (("a=/a", "a=/b"), "there are two adapters named a"),
        (("m=/a",), "an adapter has the name of the model, m"),
        (("a=~nobody-at-all/a",), "no such user's home"),
        (tuple(f"a{i}=/a" for i in range(129)), "at most 128 items"),
    ],
)
def test_names_of_adapters_that_clash_or_are_none(lora: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        WorkerSettings(model="/models/m", lora=lora)
