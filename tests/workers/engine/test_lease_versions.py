"""What an ended lease held stays good until it is overwritten: a D that reads late is not refused for nothing."""

from __future__ import annotations

import pytest

from baton_serve.workers.engine.blocks.block_pool import BlockPool
from baton_serve.workers.engine.blocks.lease_index import Grant


@pytest.mark.parametrize("is_named", [True, False])
def test_versions_outlive_the_lease(is_named: bool) -> None:
    pool = BlockPool(4, 16, version_base=7)
    blocks = pool.allocate(2)
    if is_named:
        for block in blocks:
            pool.register(block, b"content %d" % block)
    versions = [pool.version_of(block) for block in blocks]
    promise = pool.lease("a", Grant(blocks=blocks))
    assert pool.end_lease("a")
    assert [pool.version_of(block) for block in blocks] == versions
    assert max(versions) <= promise
    pool.allocate(4)
    assert min(pool.version_of(block) for block in blocks) > promise


def test_versions_outlive_a_lease_that_is_taken_over() -> None:
    pool = BlockPool(2, 16, version_base=7)
    promise = pool.lease("a", Grant(blocks=pool.allocate(2)))
    assert max(pool.version_of(block) for block in pool.take_over("a")) <= promise
