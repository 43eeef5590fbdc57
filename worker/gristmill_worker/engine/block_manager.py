"""Hands out fixed-size Blocks of KV cache and finds the ones that already hold a prefix.

A full Block is known by a hash chain: the hash of its tokens and of the Block before it. A hash
only finds a candidate; tokens and predecessor are compared before the Block is shared, so two
prompts can never be served each other's keys and values, however bad the hash. The first Block of a
Sequence has its adapter for a predecessor: with another one the same tokens have other keys.

A prefix that goes on inside a Block, full or not, and then leaves it, is forked: the Sequence gets
a Block of its own, and what the other one holds is copied into it before the step.

Every Block is in exactly one of these places:

    free, empty    on a stack: the Block used last is warm in the CPU's cache
    free, cached   in the order of their last use: the oldest is evicted first
    used           ref_count >= 1; shared Blocks are full and never written again
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from itertools import islice

from gristmill_worker.engine.sequence import Sequence

#: Blocks that are compared with the tokens of a Sequence to find the best one to fork.
_FORKS_LOOKED_AT = 16


def hash_block(parent_hash: int, token_ids: tuple[int, ...]) -> int:
    """Hash of a Block from that of its predecessor (the first has a root) and its own tokens."""
    return hash((parent_hash, token_ids))


@dataclass(slots=True)
class Block:
    """One Block. `content_id` names its content for good: a Block that is used anew gets a new
    one, so a child that names its parent's content_id can never take a stranger for its parent.

    `token_ids` are the computed tokens that others may find here. A Block that is not full has
    neither hash nor content_id: it can be forked, not shared, and more may come behind them.
    """

    idx: int
    ref_count: int = 0
    hash: int | None = None
    content_id: int = 0
    parent_content_id: int = 0
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `num_tokens` tokens of a Sequence, which are computed already: full Blocks to
    share, and, if there are more, a Block `fork` that the rest is to be copied from."""

    blocks: tuple[int, ...] = ()
    num_tokens: int = 0
    fork: int | None = None


def num_common(one: Ids[int], other: Ids[int]) -> int:
    """How many tokens two pieces of text have in common, from the first on."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))


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
        #: Blocks with findable tokens, by their parent's content_id and their first token.
        self._siblings: dict[tuple[int, int], dict[int, None]] = {}
        self._next_content_id = 1
        #: What stands for the Block before the first one, by adapter: 0 for the model itself.
        self._roots: dict[str, int] = {"": 0}

    @property
    def min_forked(self) -> int:
        """Tokens below which a copy, or waiting for one, costs more than computing them."""
        return max(1, self.block_size // 4)

    @property
    def num_free_blocks(self) -> int:
        return len(self._empty) + len(self._evictable)

    @property
    def num_used_blocks(self) -> int:
        """Held by a Sequence; what the prefix cache alone keeps is free."""
        return self.num_blocks - self.num_free_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find_prefix(self, seq: Sequence) -> Prefix:
        """The Blocks that hold the longest prefix of the Sequence.

        Tokens whose logits are wanted must be computed, and so must all behind the first of them.
        The last token is always one.
        """
        if not self.prefix_caching:
            return Prefix()
        found: list[int] = []
        parent = self.root(seq)
        for i in range(seq.max_cached_tokens // self.block_size):
            candidate = self._cached.get(self.block_hash(seq, i))
            if candidate is None:
                break
            block = self._blocks[candidate]
            if block.parent_content_id != parent or block.token_ids != self._tokens(seq, i):
                break
            found.append(candidate)
            parent = block.content_id
        fork, num_forked = self._find_fork(seq, len(found), parent)
        return Prefix(tuple(found), len(found) * self.block_size + num_forked, fork)

    def num_blocks_to_admit(self, prefix: Prefix, num_tokens: int) -> int:
        """Free Blocks it takes to start from `prefix` and hold `num_tokens` tokens.

        Cached Blocks that nobody uses count as free and are taken, so they are counted too. A
        Block to fork is not taken.
        """
        unused = sum(1 for idx in prefix.blocks if self._blocks[idx].ref_count == 0)
        return self.num_blocks_for(num_tokens) - len(prefix.blocks) + unused

    def adopt_prefix(self, seq: Sequence, prefix: Prefix) -> None:
        """Begin the block table of a Sequence with the Blocks from `find_prefix`.

        If there is one to fork, the Block that comes next is to get a copy of it before anything
        is written: the Block to fork may be handed out anew, even as that next one.
        """
        assert not seq.block_table, f"{seq.seq_id} already holds Blocks"
        if prefix.fork is not None and prefix.fork in self._evictable:
            self._evictable.move_to_end(prefix.fork)
        for idx in prefix.blocks:
            block = self._blocks[idx]
            if block.ref_count == 0:
                del self._evictable[idx]
            block.ref_count += 1
        seq.block_table = list(prefix.blocks)

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
        """Make what was just computed findable by other Sequences.

        A Block that gets one token at a time is made so when it is full, or given back.
        """
        if not self.prefix_caching:
            return
        first = previously_computed // self.block_size
        for i in range(first, seq.num_computed_tokens // self.block_size):
            block = self._blocks[seq.block_table[i]]
            if block.hash is not None:
                continue
            hash_ = self.block_hash(seq, i)
            if hash_ in self._cached:
                break  # computed twice at the same time: the first one stays
            if not self._show(seq, i):
                break
            block.hash, block.content_id = hash_, self._next_content_id
            self._next_content_id += 1
            self._cached[hash_] = block.idx
        else:
            if seq.num_computed_tokens > previously_computed + 1:
                self._show_rest(seq)

    def free(self, seq: Sequence) -> None:
        """Give back all Blocks of a Sequence; full ones stay findable until they are needed.

        The tail goes first, so that eviction takes the ends of chains before their beginnings.
        What a Sequence with an error held is found by nobody: not a number spreads within a row,
        in some backends even to the tokens before it.
        """
        if self.prefix_caching and seq.block_table and seq.error is None:
            self._show_rest(seq)
        for idx in reversed(seq.block_table):
            block = self._blocks[idx]
            if seq.error is not None:
                self._hide(block)
            block.ref_count -= 1
            assert block.ref_count >= 0, f"Block {idx} was given back twice"
            if block.ref_count == 0:
                if block.token_ids:
                    self._evictable[idx] = None
                else:
                    self._empty.append(idx)
        seq.block_table = []

    def block_hash(self, seq: Sequence, i: int) -> int:
        """Chain hash of the i-th full Block of a Sequence."""
        hashes = seq.block_hashes
        while len(hashes) <= i:
            parent = hashes[-1] if hashes else self.root(seq)
            hashes.append(self._hash_block(parent, self._tokens(seq, len(hashes))))
        return hashes[i]

    def root(self, seq: Sequence) -> int:
        """Hash and content_id of what stands before the first Block of a Sequence."""
        # From -2 on: Python gives -1 the same hash.
        return self._roots.setdefault(seq.adapter, -1 - len(self._roots))

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
        assert not any(self._blocks[idx].token_ids for idx in self._empty)
        assert {idx for idx in self._cached.values()} == {
            block.idx for block in self._blocks if block.hash is not None
        }
        shown = [block for block in self._blocks if block.token_ids]
        assert all(
            block.idx in self._siblings[block.parent_content_id, block.token_ids[0]]
            for block in shown
        )
        assert sum(map(len, self._siblings.values())) == len(shown)
        assert all(self._siblings.values()), "an empty set of siblings"
        for block in self._blocks:
            assert (block.content_id > 0) == (block.hash is not None)
            assert block.hash is None or len(block.token_ids) == self.block_size

    def _tokens(self, seq: Sequence, i: int) -> tuple[int, ...]:
        return tuple(seq.token_ids[i * self.block_size : (i + 1) * self.block_size])

    def _find_fork(self, seq: Sequence, i: int, parent: int) -> tuple[int | None, int]:
        """The Block that holds most of the tokens behind the first i Blocks, and how many."""
        begin = i * self.block_size
        end = min(begin + self.block_size, seq.max_cached_tokens)
        if end - begin < self.min_forked:
            return None, 0
        wanted = seq.token_ids[begin:end]
        best, most = None, self.min_forked - 1
        siblings = self._siblings.get((parent, wanted[0]), {})
        for idx in islice(reversed(siblings), _FORKS_LOOKED_AT):
            num_found = num_common(wanted, self._blocks[idx].token_ids)
            if num_found > most:
                best, most = idx, num_found
                if most == len(wanted):
                    break
        return best, most if best is not None else 0

    def _show_rest(self, seq: Sequence) -> None:
        """Make the computed tokens of the Block that is not full findable."""
        if seq.num_computed_tokens % self.block_size >= self.min_forked:
            self._show(seq, seq.num_computed_tokens // self.block_size)

    def _show(self, seq: Sequence, i: int) -> bool:
        """Make the computed tokens of a Sequence's i-th Block findable. False if they can't be:
        the Block before is a private copy."""
        parent = self._blocks[seq.block_table[i - 1]].content_id if i else self.root(seq)
        if i and parent == 0:
            return False
        block = self._blocks[seq.block_table[i]]
        begin = i * self.block_size
        end = min(begin + self.block_size, seq.num_computed_tokens)
        block.parent_content_id, block.token_ids = parent, tuple(seq.token_ids[begin:end])
        self._siblings.setdefault((parent, block.token_ids[0]), {})[block.idx] = None
        return True

    def _evict(self) -> int:
        idx, _ = self._evictable.popitem(last=False)
        self._hide(self._blocks[idx])
        return idx

    def _hide(self, block: Block) -> None:
        """Let nobody find the Block any more, nor what comes behind it."""
        if not block.token_ids:
            return
        if block.hash is not None:
            del self._cached[block.hash]
        key = block.parent_content_id, block.token_ids[0]
        del self._siblings[key][block.idx]
        if not self._siblings[key]:
            del self._siblings[key]
        block.hash, block.content_id, block.parent_content_id, block.token_ids = None, 0, 0, ()
