"""What is read from a server's output."""

from __future__ import annotations

import pytest

from baton_serve.baton.processes.vllm.output import Output

LINES = b"""\
(APIServer pid=3304) INFO 11-23 03:37:34 [model.py:733] Resolved architecture: LlamaForCausalLM
Triton is installed, but doesn't include CPU backend. Disabling Triton.
(EngineCore pid=3677) INFO 11-23 03:38:36 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/m'
(Worker pid=4551) INFO 11-23 03:39:35 [cpu_model_runner.py:68] Starting to load model /m...
\rLoading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]\
\rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 24.31it/s]

(Worker pid=4551) INFO 11-23 03:39:35 [default_loader.py:501] Loading weights took 0.08 seconds
(EngineCore pid=3677) INFO 11-23 03:39:41 [kv_cache_utils.py:2327] CPU KV cache size: 1,048,576 tokens, Maximum
Capturing CUDA graphs (decode, FULL):  70%|#######   | 24/35 [00:01<00:00, 13.16it/s]
(APIServer pid=3304) INFO 11-23 03:40:02 [entry.py:140] Starting vLLM server on http://127.0.0.1:18102
"""


def test_how_far_it_is() -> None:
    assert list(Output().take(LINES)) == [
        "reading the configuration (LlamaForCausalLM)",
        "starting the engine",
        "loading the model",
        "loading the weights (0%)",
        "loading the weights (50%)",
        "weights loaded",
        "KV cache of 1,048,576 tokens",
        "capturing CUDA graphs (70%)",
        "opening the port",
    ]


def test_lines_may_come_in_pieces() -> None:
    output = Output()
    pieces = [LINES[index : index + 7] for index in range(0, len(LINES), 7)]
    assert [text for piece in pieces for text in output.take(piece)] == list(Output().take(LINES))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing of note\nnanobind: leaked 4 instances!\n", ""),
        (
            "(EngineCore pid=8) ERROR 11-23 04:00:01 [core.py:1] ValueError: No memory for the cache blocks.\n"
            "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above.\n",
            "ValueError: No memory for the cache blocks.",
        ),
        (
            "(APIServer pid=9) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "(APIServer pid=9)   Value error, Model architectures ['X'] are not supported. [type=value_error]\n",
            "Model architectures ['X'] are not supported. [type=value_error]",
        ),
        ("usage: vllm serve [options]\nvllm serve: error: unrecognized arguments: --flux\n", None),
        ("api_server.py: error: argument --port: invalid int value: 'x'\n", None),
        ("KeyError: 'a'\nDuring handling of the above:\nOSError: no such model\n", "OSError: no such model"),
    ],
)
def test_why_it_died(text: str, reason: str | None) -> None:
    output = Output()
    list(output.take(text.encode()))
    assert output.reason() == (text.splitlines()[-1] if reason is None else reason)
