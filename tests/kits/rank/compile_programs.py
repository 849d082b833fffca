"""Compiles the programs of GPUs, which need not be there: ``python -m tests.kits.rank.compile_programs``.

Triton must not be told to interpret. For each case a line of JSON: its name, the bytes of shared memory of a program,
and whether it uses the GPU's units for products of matrices.
"""

from __future__ import annotations

import json
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from baton_serve.workers.rank.gpu.programs import (
    gate_program,
    rms_norm_program,
    rotate_program,
    store_program,
)
from baton_serve.workers.rank.in_place.programs import attend_program, merge_program
from baton_serve.workers.rank.in_place.triton_kernel import TileSizes, tile_sizes

ITEM_SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}
STRIDES = (
    "query_head_stride",
    "query_token_stride",
    "block_stride",
    "head_stride",
    "value_offset",
    "table_stride",
    "out_split_stride",
)
#: Compute capability, dtype, head size, query heads for each KV head, tokens of a row (0: any), splits, window.
CASES = (
    (80, "bf16", 128, 4, 1, 8, False),
    (80, "fp32", 256, 7, 100, 1, False),
    (90, "bf16", 128, 4, 100, 1, True),
    (90, "fp16", 64, 1, 1, 1, False),
)


def compile_attend(
    capability: int, dtype: str, head_dim: int, shared: int, num_tokens: int, splits: int, is_windowed: bool
) -> Any:
    """What Triton makes of ``attend_program``, with the sizes that the kernel would choose."""
    sizes: TileSizes = tile_sizes(num_tokens, shared, head_dim, ITEM_SIZES[dtype])
    out = "fp32" if splits > 1 else dtype
    signature = {"query": f"*{dtype}", "blocks": f"*{dtype}", "tables": "*i32", "ends": "*i32", "out": f"*{out}"}
    signature |= {"sums": "*fp32", "maxima": "*fp32", "scaling": "fp32"}
    signature |= dict.fromkeys(("window", "num_tokens", "tiles_per_row", *STRIDES), "i32")
    constants = {
        "SHARED": shared,
        "NUM_HEADS": 8 * shared,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": 16,
        "BLOCK_M": sizes.queries,
        "BLOCK_N": sizes.keys,
        "BLOCK_D": sizes.dims,
        "NUM_SPLITS": splits,
        "WINDOWED": is_windowed,
    }
    # All pointers are aligned to 16 bytes, as torch's are.
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(7)}
    source = ASTSource(attend_program, signature | dict.fromkeys(constants, "constexpr"), constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_stages": 2})


def compile_merge() -> Any:
    """What Triton makes of ``merge_program``."""
    constants = {"HEAD_DIM": 128, "BLOCK_D": 128, "NUM_SPLITS": 8}
    signature = {"weighted": "*fp32", "sums": "*fp32", "maxima": "*fp32", "out": "*bf16", "split_stride": "i32"}
    source = ASTSource(merge_program, signature | dict.fromkeys(constants, "constexpr"), constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32))


def compile_rows(dtype: str) -> Any:
    """What Triton makes of the programs for tokens by themselves, by name."""
    numbers = f"*{dtype}"
    strides = ["tokens", "key_head", "key_token", "value_head", "value_token", "value_offset"]
    store = {"cache": numbers, "slots": "*i64", "key": numbers, "value": numbers, **dict.fromkeys(strides, "i32")}
    rotate = {"numbers": numbers, "cosines": numbers, "sines": numbers, "token_stride": "i32"}
    wanted = {
        "norm": (
            rms_norm_program,
            {"inputs": numbers, "weight": numbers, "outputs": numbers, "eps": "fp32"},
            {"SIZE": 1536, "BLOCK": 2048},
        ),
        "rotate": (rotate_program, rotate, {"HEAD_DIM": 80, "BLOCK": 64}),
        "gate": (gate_program, {"product": numbers, "outputs": numbers, "size": "i32"}, {"BLOCK": 1024}),
        "store": (store_program, store, {"HEAD_DIM": 80, "BLOCK": 128}),
    }
    return {
        f"{name} {dtype}": triton.compile(
            ASTSource(program, signature | dict.fromkeys(constants, "constexpr"), constants),
            target=GPUTarget("cuda", 90, 32),
        )
        for name, (program, signature, constants) in wanted.items()
    }


def main() -> None:
    compiled = {f"attend {case}": compile_attend(*case) for case in CASES}
    rows = compile_rows("bf16") | compile_rows("fp16") | compile_rows("fp32")
    for name, made in {**compiled, "merge": compile_merge(), **rows}.items():
        assert made.asm["cubin"], "the GPU's own code"
        found = {
            "name": name,
            "shared_bytes": made.metadata.shared,
            "uses_matrix_units": "mma" in made.asm["ptx"],
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main()
