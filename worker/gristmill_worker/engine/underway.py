"""Which prefixes running Sequences compute at this moment, and who does better to wait for one.

What a step under way computes counts among them until it has been seen to be sound.
"""

from __future__ import annotations

from collections.abc import Iterable

from gristmill_worker.engine.block_manager import BlockManager, Prefix, num_common
from gristmill_worker.engine.sequence import Sequence


class Underway:
    """The Blocks that the prompts of running Sequences are about to fill, whole or in part."""

    def __init__(self, block_manager: BlockManager, running: Iterable[Sequence]) -> None:
        self._block_manager = block_manager
        #: Who computes a Block, by the hash of the Block before it and its own first token.
        self._computed_by: dict[tuple[int, int], list[Sequence]] = {}
        for seq in running:
            if seq.num_tokens_to_compute - seq.num_computed_tokens > 1:
                self.add(seq)

    def add(self, seq: Sequence) -> None:
        if not self._block_manager.prefix_caching:
            return
        size = self._block_manager.block_size
        first = seq.num_computed_tokens // size
        for i in range(first, self._block_manager.num_blocks_for(seq.num_tokens_to_compute)):
            self._computed_by.setdefault(self._key(seq, i), []).append(seq)

    def is_worth_waiting_for(self, seq: Sequence, prefix: Prefix) -> bool:
        """Whether more than `prefix` can soon be had: a whole Block, or enough of one to copy."""
        size = self._block_manager.block_size
        begin = len(prefix.blocks) * size
        end = min(begin + size, seq.max_cached_tokens)
        if not self._block_manager.prefix_caching or begin >= end:
            return False
        enough = min(size, prefix.num_tokens - begin + self._block_manager.min_forked)
        if end - begin < enough:
            return False
        wanted = seq.token_ids[begin:end]
        return any(
            num_common(wanted, other.token_ids[begin : min(end, other.num_tokens_to_compute)])
            >= enough
            for other in self._computed_by.get(self._key(seq, len(prefix.blocks)), ())
        )

    def _key(self, seq: Sequence, i: int) -> tuple[int, int]:
        parent = self._block_manager.block_hash(seq, i - 1) if i else self._block_manager.root(seq)
        return parent, seq.token_ids[i * self._block_manager.block_size]
