"""lm-eval: scoring and generating through the API gives the numbers that transformers gives on the same model."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from rows import KEY, MODEL, URL, check

os.environ["OPENAI_API_KEY"] = KEY
logging.disable(logging.WARNING)
FOLDER = os.environ["BATON_MODEL_FOLDER"]
HERE = Path.cwd()
#: How far scores of sums in another order may lie apart.
CLOSE = 1e-3
FACTS = [
    ("What is a lease?", ["A lease is a promise", "A lease is a kind of bread"], 0),
    ("What is Baton?", ["Baton is a river", "Baton serves large language models"], 1),
    ("Who reads the blocks?", ["A decode worker reads them", "Nobody"], 0),
]


def write_tasks() -> None:
    """Three tasks on files of this folder: nothing is asked of a hub."""
    rows = [{"question": question, "options": options, "right": right} for question, options, right in FACTS]
    (HERE / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(HERE / "facts.jsonl")}},
        "test_split": "test",
        "doc_to_text": "Question: {{question}}\nAnswer:",
    }
    tasks = {
        "choose": {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{options}}",
            "doc_to_target": "right",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
        "say": {
            "output_type": "generate_until",
            "doc_to_target": "{{options[right]}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False},
            "metric_list": [{"metric": "exact_match"}],
        },
        "read": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{question}} {{options[right]}}",
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
        },
    }
    for name, task in tasks.items():
        # YAML takes JSON.
        (HERE / f"{name}.yaml").write_text(json.dumps({"task": f"baton_{name}", **common, **task}), encoding="utf-8")


@functools.cache
def results(model: str, task: str) -> dict[str, Any]:
    """The metrics and the samples of a task."""
    api = {"model": MODEL, "base_url": f"{URL}/v1/completions", "tokenizer": FOLDER, "max_length": 2048}
    arguments: dict[str, Any] = (
        {**api, "tokenizer_backend": "huggingface", "num_concurrent": 4, "add_bos_token": True}
        if model == "local-completions"
        else {"pretrained": FOLDER, "dtype": "float32", "device": "cpu", "max_length": 2048}
    )
    manager = TaskManager(include_path=str(HERE))
    found = simple_evaluate(
        model=model, model_args=arguments, tasks=[f"baton_{task}"], task_manager=manager, bootstrap_iters=0
    )
    return {"metrics": found["results"][f"baton_{task}"], "samples": found["samples"][f"baton_{task}"]}


def alike(task: str) -> str:
    """The metrics of both. Raises ValueError if they differ, or the scores or texts of a sample."""
    ours, theirs = results("local-completions", task), results("hf", task)
    numbers = [(value, theirs["metrics"][name]) for name, value in ours["metrics"].items() if isinstance(value, float)]
    for one, other in zip(ours["samples"], theirs["samples"], strict=True):
        for mine, its in zip(one["resps"], other["resps"], strict=True):
            if isinstance(mine[0], str):
                if mine[0] != its[0]:
                    raise ValueError(f"{mine[0]!r}, not {its[0]!r}")
            else:
                numbers.append((float(_score(mine)), float(_score(its))))
    apart = [pair for pair in numbers if not math.isclose(*pair, abs_tol=CLOSE, rel_tol=CLOSE)]
    if apart:
        raise ValueError(f"{apart[0][0]}, not {apart[0][1]}")
    metrics = [name for name, value in ours["metrics"].items() if isinstance(value, float)]
    return ", ".join(
        f"{name.partition(',')[0]} {ours['metrics'][name]:.5g} ({theirs['metrics'][name]:.5g})" for name in metrics
    )


def _score(response: Any) -> Any:
    """The sum of logprobs in a response, which may be in lists with other things."""
    while isinstance(response, list | tuple):
        response = response[0]
    return response


write_tasks()
check("loglikelihood (a multiple choice), as transformers", lambda: alike("choose"), show=True)
check("generate_until, as transformers", lambda: alike("say"), show=True)
check("loglikelihood_rolling (perplexity), as transformers", lambda: alike("read"), show=True)
