"""Native programs add what adapters make of their own tokens, with the same bits among any others."""

from __future__ import annotations

import pytest
import torch

from baton_serve.workers.rank.adapters.factors import Factors, Piece
from baton_serve.workers.rank.native.support import has_tiles

pytestmark = pytest.mark.skipif(not has_tiles(torch.float32), reason="this processor has no instructions for tiles")

#: Roundings that hidden numbers and outputs may be off by, in parts of the largest.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
INPUTS, OUTPUTS = 72, 200


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if not has_tiles(request.param):
        pytest.skip("this processor has no instructions for the type")
    torch.manual_seed(0)
    found: torch.dtype = request.param
    return found


def factors(dtype: torch.dtype, rank: int, layers: tuple[Piece, ...] = ()) -> Factors:
    up = torch.randn(rank, OUTPUTS)
    if layers:
        kept = torch.zeros_like(up)
        for first, size, output, outputs in layers:
            mine = slice(first, first + size), slice(output, output + outputs)
            kept[mine] = up[mine]
        up = kept
    return Factors(torch.randn(INPUTS, rank).to(dtype), up.to(dtype), joined=layers)


def added(
    adapters: dict[int, Factors], inputs: torch.Tensor, product: torch.Tensor, numbers: list[int]
) -> torch.Tensor:
    from baton_serve.workers.rank.adapters.native_parts import NativeParts, takes

    assert takes(adapters)
    result = product.clone()
    NativeParts(adapters).add(inputs, result, torch.tensor(numbers))
    return result


def test_each_token_gets_what_its_adapter_makes_of_it(dtype: torch.dtype) -> None:
    layers = (Piece(0, 3, 0, 64), Piece(3, 20, 64, 30), Piece(23, 5, 130, 70))
    wide = (Piece(0, 400, 0, 64), Piece(400, 1100, 64, 30), Piece(1500, 700, 130, 70))
    adapters = {
        0: factors(dtype, 8),
        2: factors(dtype, 28, layers),
        3: factors(dtype, 100),
        4: factors(dtype, 2200, wide),
    }
    numbers = [2, -1, 0, 0, 0, 0, 0, 3, 3, 3, 3, 1, 2, 2, 7, 0, 4, 4, 4, 4, 4]
    inputs, product = (torch.randn(len(numbers), size).to(dtype) for size in (INPUTS, OUTPUTS))
    found = added(adapters, inputs, product, numbers)
    for token, number in enumerate(numbers):
        if number not in adapters:
            assert torch.equal(found[token], product[token])
            continue
        hidden = (inputs[token].double() @ adapters[number].down.double()).to(dtype)
        exact = product[token].double() + hidden.double() @ adapters[number].up.double()
        assert (found[token].double() - exact).abs().max() < TOLERANCE[dtype] * exact.abs().max()


@pytest.mark.parametrize("rank", [1, 16, 33, 200])
def test_a_token_has_the_same_bits_among_any_others(dtype: torch.dtype, rank: int) -> None:
    from baton_serve.workers.rank.native.low_rank import LEAST_FOR_TWO

    adapters, count = {0: factors(dtype, rank), 1: factors(dtype, 16)}, 301
    inputs, product = (torch.randn(count, size).to(dtype) for size in (INPUTS, OUTPUTS))
    assert count * (INPUTS + OUTPUTS) * rank >= LEAST_FOR_TWO or rank == 1, "so much that all threads compute"
    numbers = [0] * count
    whole = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        whole.append(added(adapters, inputs, product, numbers))
    assert torch.equal(whole[0], whole[1]) and torch.equal(whole[0], whole[2])
    mixed = added(adapters, inputs, product, [token % 3 % 2 for token in range(count)])
    assert torch.equal(mixed[::3], whole[0][::3])
    assert torch.equal(added(adapters, inputs[5:6], product[5:6], [0])[0], whole[0][5])


def test_what_there_is_no_program_for_is_not_taken(dtype: torch.dtype) -> None:
    from baton_serve.workers.rank.adapters.native_parts import takes

    fits = factors(dtype, 4)
    assert takes({0: fits})
    assert not takes({0: Factors(fits.down, fits.up, is_partial=True)})
    assert takes({0: Factors(fits.down[1:], fits.up)}) == (dtype == torch.float32), (
        "two bfloat16 are multiplied at a time"
    )
    assert not takes({0: fits, 1: Factors(fits.down.double(), fits.up.double())}), "two types"
    assert not takes({0: Factors(fits.down.half(), fits.up.half())})


@pytest.mark.parametrize("ranks", [[1], [16, 16], [400, 1100, 700], [1024], [1025], [3000, 1]])
def test_groups_have_all_of_an_adapter_and_fit(ranks: list[int]) -> None:
    from baton_serve.workers.rank.adapters.native_parts import groups_of, padded
    from baton_serve.workers.rank.native.low_rank import MAX_HIDDEN

    pieces = [Piece(sum(ranks[:i]), rank, 10 * i, 10) for i, rank in enumerate(ranks)]
    groups = groups_of(pieces)
    assert all(0 < sum(padded(piece.rank) for piece in group) <= MAX_HIDDEN for group in groups)
    found = [hidden for group in groups for piece in group for hidden in range(piece.first_hidden, sum(piece[:2]))]
    assert found == list(range(sum(ranks)))
    assert {piece[2:] for group in groups for piece in group} == {piece[2:] for piece in pieces}
