"""What a model's makers recommend to sample with has the same effect in Baton's workers as in a vLLM server."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from baton_serve.baton.cluster.process import VllmSpec
from baton_serve.baton.demo import MODEL_DIR
from baton_serve.baton.processes.vllm.connectors import STOCK
from baton_serve.baton.processes.vllm.extra_args import ExtraArgs
from baton_serve.baton.processes.vllm.held_ports import HeldPorts
from baton_serve.baton.processes.vllm.program import find_vllm
from baton_serve.baton.processes.vllm.server import ServerPlace, ServerShare, VllmModel
from tests.kits.vllm.asking import chat, completion
from tests.kits.whole.stack import MODEL, Stack
from tests.vllm.conftest import VARIABLE

#: Of two tokens or more none is drawn, so that an answer shows what was sampled with.
RECOMMENDED = {"do_sample": True, "temperature": 1.7, "top_k": 1, "repetition_penalty": 1.4, "max_new_tokens": 24}
PROMPTS = ("What is the fence?", "Who wrote Hamlet?", "How does a lease end?", "What is the capital of Norway?")
#: What requests say themselves; what they leave out, the makers say.
SAID: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"repetition_penalty": 1.0},
    {"repetition_penalty": 3.0, "top_p": 0.5},
    {"temperature": 0, "top_k": -1, "repetition_penalty": 1.0},
    {"max_tokens": 5},
]


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """Chats and completions that say nothing but what ``SAID`` has."""
    found = []
    for path, body in (make(prompt) for prompt in PROMPTS for make in (chat, completion)):
        plain = {name: value for name, value in body.items() if name not in {"temperature", "max_tokens"}}
        found += [(path, plain | said) for said in SAID]
    return found


async def answers(stack: Stack, url: str) -> list[tuple[str, str]]:
    found = []
    for path, body in bodies():
        response = await stack.http.post(url + path, json=body)
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        found.append((choice.get("text") or choice["message"]["content"], choice["finish_reason"]))
    return found


async def test_they_are_used_as_vllm_uses_them(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODEL_DIR, model)
    given = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(given | RECOMMENDED))
    args = ExtraArgs("--max-model-len 1024 --max-num-seqs 8 --block-size 32 --dtype float32")
    with HeldPorts() as ports:
        place = ServerPlace(ports.take(), ports.take(), ports.take())
        served = VllmModel(str(model), 30, MODEL, args, STOCK)
        async with Stack(tmp_path, model=model, worker_flags={"dtype": "float32"}) as stack:
            program = find_vllm(os.environ[VARIABLE])
            await stack.cluster.add("vllm", VllmSpec("prefill", program, served, place, ServerShare(threads=1)))
            wanted = await answers(stack, place.url)
            found = await answers(stack, stack.router.url)
            card = (await stack.http.get(f"{stack.router.url}/v1/models/{MODEL}")).json()
    differ = [(body, one, other) for (_, body), one, other in zip(bodies(), found, wanted, strict=True) if one != other]
    assert differ == []
    assert len(set(wanted)) > len(wanted) // 3, "what a request says makes a difference"
    recommended = {"temperature": 1.7, "top_k": 1, "repetition_penalty": 1.4, "max_tokens": 24}
    assert card["sampling_defaults"] == pytest.approx(recommended)
