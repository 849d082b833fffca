"""Three sizes, as folders that transformers and vLLM load."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from baton_serve.baton.demo import MODEL_DIR
from bench.models.llama import LlamaSize, make_llama
from bench.performance.machine import ROOT

FOLDER = ROOT / "build" / "bench" / "models"
#: Tokens of the demo's tokenizer.
VOCAB_SIZE = 1536
#: Room for contexts of 32,768 tokens and what is decoded after them.
MAX_POSITIONS = 33_792
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_SEED = 1

_size = partial(LlamaSize, vocab_size=VOCAB_SIZE, max_positions=MAX_POSITIONS)
SIZES = {
    size.name: size
    for size in (
        _size("5M", hidden=256, intermediate=704, layers=6, heads=8, kv_heads=4),
        _size("50M", hidden=640, intermediate=1728, layers=11, heads=10, kv_heads=5),
        _size("500M", hidden=1536, intermediate=4096, layers=20, heads=24, kv_heads=8),
    )
}


def model_folder(size: LlamaSize, parent: Path = FOLDER) -> Path:
    """The folder of the model, which is made if it is not there: float32 weights and the demo's tokenizer."""
    folder = parent / f"llama-{size.name}"
    if folder.exists():
        return folder
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    make_llama(size, _SEED).save_pretrained(unfinished)
    for name in TOKENIZER_FILES:
        shutil.copy(MODEL_DIR / name, unfinished)
    unfinished.rename(folder)
    return folder
