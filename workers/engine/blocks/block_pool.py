"""Who owns which block of the KV cache. Pure; every operation costs O(1) per block it names.

Each block is in exactly one state, derived from its users and leases:

    leased   at least one lease holds it; sequences may use it too
    pinned   no lease holds it, but at least one sequence uses it, or a read may write it
    cached   unused, and its hash is known, so that a prompt can reuse it; evicted least recently used first
    free     unused, and without a known hash

Always free + cached + pinned + leased = total. A block's version changes when the block is allocated, because it is
about to be overwritten. The version does not change when the block is freed: the content stays valid for a reader whose
lease has ended, until the block is allocated again.

Every allocation of a block counts versions up by one. So one number is promised for all blocks of a lease, the version
that was given last: a block has a larger version once it is allocated again, and not before.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from baton_serve.workers.engine.blocks.lease_index import Grant, LeaseIndex
from baton_serve.workers.engine.errors import LedgerError, OutOfBlocksError


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The number of blocks in each state, and the number of leases that hold blocks."""

    total: int
    free: int
    cached: int
    pinned: int
    leased: int
    leases: int

    def __str__(self) -> str:
        return (
            f"{self.total} blocks: {self.free} free + {self.cached} cached + {self.pinned} pinned"
            f" + {self.leased} leased by {self.leases} leases"
        )


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` tokens. ``version_base``: versions begin above it; a random 63-bit number
    per engine start.
    """

    def __init__(self, num_blocks: int, block_size: int, version_base: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._last_version = version_base
        self._users = [0] * num_blocks
        self._holds = [0] * num_blocks
        self._versions = [0] * num_blocks
        self._block_hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        # First in, first out: freed blocks keep their data as long as possible, for readers whose lease has ended.
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        #: What holds blocks, by lease and by request.
        self.leases = LeaseIndex()
        self._num_pinned = 0
        self._num_leased = 0

    @property
    def num_available(self) -> int:
        """The number of blocks that ``allocate`` could return now."""
        return len(self._free) + len(self._cached)

    def version_of(self, block: int) -> int:
        return self._versions[block]

    # --- allocating ---------------------------------------------------------------------------------------------

    def lookup(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known prefix of ``block_hashes``. Changes nothing; ``share`` them to keep them."""
        found: list[int] = []
        for block_hash in block_hashes:
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def num_idle(self, blocks: Sequence[int]) -> int:
        """The number of these blocks that are cached; sharing them lowers ``num_available`` by this number."""
        cached = self._cached
        return sum(block in cached for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Add a user to blocks with known hashes. Shared blocks must not be written."""
        if any(self._block_hashes[block] is None for block in blocks):
            raise LedgerError(f"block without a known hash shared: {blocks}")
        for block in blocks:
            if self._users[block] == 0 and self._holds[block] == 0:
                del self._cached[block]
                self._num_pinned += 1
            self._users[block] += 1

    def allocate(self, num_blocks: int) -> list[int]:
        """Blocks with one user, no hash and new versions: free ones first, then the least recently used cached ones.

        Raises OutOfBlocksError, and allocates nothing, if fewer are available.
        """
        if num_blocks > self.num_available:
            raise OutOfBlocksError(f"{num_blocks} blocks wanted, {self.stats()}")
        return [self._take() for _ in range(num_blocks)]

    def _take(self) -> int:
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget_hash(block)
        self._last_version += 1
        self._versions[block] = self._last_version
        self._users[block] = 1
        self._num_pinned += 1
        return block

    def register(self, block: int, block_hash: bytes) -> None:
        """Register the hash of a block that is full and computed, and will not be written again.

        A second block with the same hash stays without a hash.

        Raises LedgerError if the block has no user or another hash.
        """
        if self._users[block] == 0 or self._block_hashes[block] not in (None, block_hash):
            raise LedgerError(f"hash registered for block {block}, which is unused or has another one")
        if block_hash not in self._by_hash:
            self._by_hash[block_hash] = block
            self._block_hashes[block] = block_hash

    def _forget_hash(self, block: int) -> None:
        block_hash = self._block_hashes[block]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self._block_hashes[block] = None

    # --- freeing ------------------------------------------------------------------------------------------------

    def free(self, blocks: Sequence[int]) -> None:
        """Remove one user of each block. The last block is evicted first: it is useless without the blocks before it.

        Raises LedgerError, and frees nothing, if a block has no user or is listed twice.
        """
        self._require_users(blocks)
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0 and self._holds[block] == 0:
                self._num_pinned -= 1
                self._retire(block)

    def _require_users(self, blocks: Sequence[int]) -> None:
        if len(set(blocks)) != len(blocks) or any(self._users[block] == 0 for block in blocks):
            raise LedgerError(f"blocks freed that are not in use, or freed twice: {blocks}")

    def _retire(self, block: int) -> None:
        if self._block_hashes[block] is None:
            self._free.append(block)
        else:
            self._cached[block] = None

    # --- leases -------------------------------------------------------------------------------------------------

    def lease(self, lease_id: str, grant: Grant) -> int:
        """Turn one use of each of the grant's blocks into a hold of the lease; returns the promise, unsigned 64 bits.

        Raises LedgerError, and changes nothing, if the id is taken or a block has no user.
        """
        blocks = grant.blocks
        self._require_users(blocks)
        self.leases.add(lease_id, grant)
        for block in blocks:
            if self._holds[block] == 0:
                self._num_pinned -= 1
                self._num_leased += 1
            self._holds[block] += 1
            self._users[block] -= 1
        return self._last_version

    def end_lease(self, lease_id: str) -> bool:
        """Release the lease's blocks, which stay cached if they have a hash; False if there is no such lease."""
        grant = self.leases.remove(lease_id)
        if grant is None:
            return False
        for block in reversed(grant.blocks):
            self._holds[block] -= 1
            if self._holds[block] == 0:
                self._num_leased -= 1
                if self._users[block] > 0:
                    self._num_pinned += 1
                else:
                    self._retire(block)
        return True

    def take_over(self, lease_id: str) -> list[int]:
        """The opposite of ``lease``: turn each hold into a use, and end the lease; returns its blocks as a new list.

        Raises LedgerError if there is no such lease.
        """
        grant = self.leases.remove(lease_id)
        if grant is None:
            raise LedgerError(f"lease {lease_id} is not held")
        for block in grant.blocks:
            self._users[block] += 1
            self._holds[block] -= 1
            if self._holds[block] == 0:
                self._num_leased -= 1
                self._num_pinned += 1
        return list(grant.blocks)

    # --- the ledger ---------------------------------------------------------------------------------------------

    def stats(self) -> PoolStats:
        """The counts now, O(1)."""
        return PoolStats(
            total=self.num_blocks,
            free=len(self._free),
            cached=len(self._cached),
            pinned=self._num_pinned,
            leased=self._num_leased,
            leases=len(self.leases),
        )

    def copied(self) -> BlockPool:
        """The pool as it is now, to be checked in another thread."""
        other = copy(self)
        other._users, other._holds, other._block_hashes = self._users[:], self._holds[:], self._block_hashes[:]
        other._by_hash, other._free, other._cached = dict(self._by_hash), self._free.copy(), self._cached.copy()
        return other

    def check(self, users: Mapping[int, int] | None = None, held: Sequence[int] | None = None) -> None:
        """Count everything again, O(total). ``users``: the number of users that each block should have, by default 0.
        ``held``: the blocks of all leases; None: as they are now.

        Raises LedgerError with all counts.
        """
        problems = self._audit()
        held = self.leases.blocks() if held is None else held
        if sum(self._holds) != len(held) or any(self._holds[block] == 0 for block in held):
            problems.append("holds differ from the leases' blocks")
        if users is not None and any(self._users[block] != users.get(block, 0) for block in range(self.num_blocks)):
            problems.append("users differ from the sequences' blocks")
        if problems:
            raise LedgerError(f"{'; '.join(problems)}: {self.stats()}")

    def _audit(self) -> list[str]:
        """The counts that do not add up, in words; empty if all do."""
        stats, users, holds, hashes = self.stats(), self._users, self._holds, self._block_hashes
        problems = []
        if stats.free + stats.cached + stats.pinned + stats.leased != stats.total:
            problems.append("the states do not add up to the total")
        if min(users, default=0) < 0 or min(holds, default=0) < 0:
            problems.append("a negative count of users or holds")
        if stats.leased != sum(hold > 0 for hold in holds):
            problems.append("leased is not the number of held blocks")
        if stats.pinned != sum(use > 0 and hold == 0 for use, hold in zip(users, holds, strict=True)):
            problems.append("pinned is not the number of used blocks")
        idle = {block for block in range(stats.total) if users[block] == 0 and holds[block] == 0}
        if stats.free + stats.cached != len(idle) or idle != {*self._free, *self._cached}:
            problems.append("free and cached are not the blocks without users and leases")
        if any(hashes[block] is not None for block in self._free) or any(
            hashes[block] is None for block in self._cached
        ):
            problems.append("a free block with a hash, or a cached one without")
        if self._by_hash != {block_hash: block for block, block_hash in enumerate(hashes) if block_hash is not None}:
            problems.append("the index of block hashes is wrong")
        return problems
