"""Hands out fixed-size Blocks of KV cache and finds the ones that already hold a prefix.

A full Block is known by a hash chain: the hash of its tokens and of the Block before it. A hash
only finds a candidate; tokens and predecessor are compared before the Block is shared, so two
prompts can never be served each other's keys and values, however bad the hash.

Every Block is in exactly one of these places:

    free, empty    on a stack: the Block used last is warm in the CPU's cache
    free, cached   in the order of their last use: the oldest is evicted first
    used           ref_count >= 1; shared Blocks are full and never written again
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gristmill_worker.engine.sequence import Sequence


def hash_block(parent_hash: int, token_ids: tuple[int, ...]) -> int:
    """Hash of a Block from the hash of its predecessor (0 for the first) and its own tokens."""
    return hash((parent_hash, token_ids))


@dataclass(slots=True)
class Block:
    """One Block. `content_id` names its content for good: a Block that is used anew gets a new
    one, so a child that names its parent's content_id can never take a stranger for its parent."""

    idx: int
    ref_count: int = 0
    hash: int | None = None
    content_id: int = 0
    parent_content_id: int = 0
    token_ids: tuple[int, ...] = ()


class BlockManager:
    """Only this class changes reference counts and block tables."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        hash_block: Callable[[int, tuple[int, ...]], int] = hash_block,
    ) -> None:
        assert num_blocks > 0 and block_size > 0, (num_blocks, block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._hash_block = hash_block
        self._blocks = [Block(idx) for idx in range(num_blocks)]
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._cached: dict[int, int] = {}
        self._next_content_id = 1

    @property
    def num_free_blocks(self) -> int:
        return len(self._empty) + len(self._evictable)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find_prefix(self, seq: Sequence) -> list[int]:
        """Indices of the cached Blocks that hold the longest prefix of the Sequence.

        Tokens whose logits are wanted must be computed, and so must all behind the first of them.
        The last token is always one.
        """
        if not self.prefix_caching:
            return []
        found: list[int] = []
        parent = 0
        for i in range(seq.max_cached_tokens // self.block_size):
            candidate = self._cached.get(self.block_hash(seq, i))
            if candidate is None:
                break
            block = self._blocks[candidate]
            if block.parent_content_id != parent or block.token_ids != self._tokens(seq, i):
                break
            found.append(candidate)
            parent = block.content_id
        return found

    def num_blocks_to_admit(self, prefix: list[int], num_tokens: int) -> int:
        """Free Blocks it takes to start from `prefix` and hold `num_tokens` tokens.

        Cached Blocks that nobody uses count as free and are taken, so they are counted too.
        """
        unused = sum(1 for idx in prefix if self._blocks[idx].ref_count == 0)
        return self.num_blocks_for(num_tokens) - len(prefix) + unused

    def adopt_prefix(self, seq: Sequence, prefix: list[int]) -> None:
        """Begin the block table of a Sequence with cached Blocks from `find_prefix`."""
        assert not seq.block_table, f"{seq.seq_id} already holds Blocks"
        for idx in prefix:
            block = self._blocks[idx]
            if block.ref_count == 0:
                del self._evictable[idx]
            block.ref_count += 1
        seq.block_table = list(prefix)

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        """Grow the block table to hold `num_tokens` tokens. False, and no change, if it can't."""
        missing = self.num_blocks_for(num_tokens) - len(seq.block_table)
        if missing > self.num_free_blocks:
            return False
        for _ in range(missing):
            idx = self._empty.pop() if self._empty else self._evict()
            self._blocks[idx].ref_count = 1
            seq.block_table.append(idx)
        return True

    def register_computed(self, seq: Sequence, *, previously_computed: int) -> None:
        """Make the Blocks that have just become full findable by other Sequences."""
        if not self.prefix_caching:
            return
        first = previously_computed // self.block_size
        for i in range(first, seq.num_computed_tokens // self.block_size):
            block = self._blocks[seq.block_table[i]]
            if block.hash is not None:
                continue
            parent = self._blocks[seq.block_table[i - 1]].content_id if i else 0
            if i and parent == 0:
                break  # the Block before is a private copy, so this one cannot be found either
            hash_ = self.block_hash(seq, i)
            if hash_ in self._cached:
                break  # computed twice at the same time: the first one stays
            block.hash, block.token_ids = hash_, self._tokens(seq, i)
            block.parent_content_id, block.content_id = parent, self._next_content_id
            self._next_content_id += 1
            self._cached[hash_] = block.idx

    def free(self, seq: Sequence) -> None:
        """Give back all Blocks of a Sequence; full ones stay findable until they are needed.

        The tail goes first, so that eviction takes the ends of chains before their beginnings.
        """
        for idx in reversed(seq.block_table):
            block = self._blocks[idx]
            block.ref_count -= 1
            assert block.ref_count >= 0, f"Block {idx} was given back twice"
            if block.ref_count == 0:
                if block.hash is None:
                    self._empty.append(idx)
                else:
                    self._evictable[idx] = None
        seq.block_table = []

    def block_hash(self, seq: Sequence, i: int) -> int:
        """Chain hash of the i-th full Block of a Sequence."""
        hashes = seq.block_hashes
        while len(hashes) <= i:
            parent = hashes[-1] if hashes else 0
            hashes.append(self._hash_block(parent, self._tokens(seq, len(hashes))))
        return hashes[i]

    def check_integrity(self, live: list[Sequence]) -> None:
        """Assert that every Block is in exactly one place and counted right (for tests)."""
        counts = [0] * self.num_blocks
        for seq in live:
            assert len(set(seq.block_table)) == len(seq.block_table), "a Block twice in one table"
            for idx in seq.block_table:
                counts[idx] += 1
        assert [block.ref_count for block in self._blocks] == counts
        free = [*self._empty, *self._evictable]
        assert len(set(free)) == len(free), "a Block is free twice"
        assert sorted(free) == [idx for idx, count in enumerate(counts) if count == 0]
        assert all(self._blocks[idx].hash is None for idx in self._empty)
        assert {idx for idx in self._cached.values()} == {
            block.idx for block in self._blocks if block.hash is not None
        }

    def _tokens(self, seq: Sequence, i: int) -> tuple[int, ...]:
        return tuple(seq.token_ids[i * self.block_size : (i + 1) * self.block_size])

    def _evict(self) -> int:
        idx, _ = self._evictable.popitem(last=False)
        block = self._blocks[idx]
        assert block.hash is not None
        del self._cached[block.hash]
        self._blocks[idx] = Block(idx)
        return idx
