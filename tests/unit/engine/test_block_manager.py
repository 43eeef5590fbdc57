"""Properties of the BlockManager: Blocks are never lost, shared wrongly or written twice."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.engine.base import NOTHING
from gristmill_worker.engine.block_manager import BlockManager
from gristmill_worker.engine.sequence import Sequence

NUM_BLOCKS, BLOCK_SIZE = 12, 3


def make_sequence(token_ids: list[int]) -> Sequence:
    job = Job((Row(0, "row"),), (Prompt(tuple(token_ids)),), SamplingParams(4))
    return Sequence("seq", job, 0, NOTHING)


class _Life(RuleBasedStateMachine):
    """Sequences come, compute, grow and go; `content` says what each Block really holds."""

    sequences = Bundle("sequences")

    def __init__(self, hash_block: object = None) -> None:
        super().__init__()
        self.manager = self.make_manager()
        self.live: list[Sequence] = []
        self.content: dict[int, tuple[int, ...]] = {}

    def make_manager(self) -> BlockManager:
        return BlockManager(NUM_BLOCKS, BLOCK_SIZE)

    @rule(target=sequences, token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def start(self, token_ids: list[int]) -> Sequence:
        seq = make_sequence(token_ids)
        prefix = self.manager.find_prefix(seq)
        needed = self.manager.num_blocks_to_admit(prefix, seq.num_tokens)
        if needed > self.manager.num_free_blocks:
            return seq
        self.manager.adopt_prefix(seq, prefix)
        seq.num_computed_tokens = len(prefix) * BLOCK_SIZE
        for i, block in enumerate(prefix):  # what is shared must hold exactly this prefix
            assert self.content[block] == tuple(token_ids[: (i + 1) * BLOCK_SIZE])
        assert seq.num_computed_tokens < seq.num_tokens
        assert self.manager.extend(seq, seq.num_tokens)
        self.live.append(seq)
        return seq

    @rule(seq=sequences, num_tokens=st.integers(1, 5))
    def compute(self, seq: Sequence, num_tokens: int) -> None:
        if seq not in self.live or seq.num_uncomputed_tokens == 0:
            return
        before = seq.num_computed_tokens
        seq.num_computed_tokens = min(seq.num_tokens, before + num_tokens)
        for position in range(before, seq.num_computed_tokens):
            block = seq.block_table[position // BLOCK_SIZE]
            holders = [other for other in self.live if block in other.block_table]
            assert holders == [seq], "a Block with two writers"
            self.content[block] = tuple(seq.token_ids[: position + 1])
        self.manager.register_computed(seq, previously_computed=before)

    @rule(seq=sequences, token_id=st.integers(0, 1))
    def grow(self, seq: Sequence, token_id: int) -> None:
        if seq in self.live and self.manager.extend(seq, seq.num_tokens + 1):
            seq.token_ids.append(token_id)

    @rule(seq=consumes(sequences))
    def end(self, seq: Sequence) -> None:
        if seq in self.live:
            self.live.remove(seq)
            self.manager.free(seq)
            assert seq.block_table == []

    @invariant()
    def books_balance(self) -> None:
        self.manager.check_integrity(self.live)


class _LifeWithWorstHash(_Life):
    """B31: a hash that is the same for all Blocks finds less, and shares nothing wrong."""

    def make_manager(self) -> BlockManager:
        return BlockManager(NUM_BLOCKS, BLOCK_SIZE, hash_block=lambda parent, tokens: 1)


class _LifeWithWeakHash(_Life):
    def make_manager(self) -> BlockManager:
        return BlockManager(NUM_BLOCKS, BLOCK_SIZE, hash_block=lambda parent, tokens: sum(tokens))


TestLife = _Life.TestCase
TestLifeWithWorstHash = _LifeWithWorstHash.TestCase
TestLifeWithWeakHash = _LifeWithWeakHash.TestCase
for case in (TestLife, TestLifeWithWorstHash, TestLifeWithWeakHash):
    case.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_full_prompt_in_the_cache_still_leaves_its_last_token() -> None:
    manager = BlockManager(8, 4)
    first = make_sequence([5] * 8)
    assert manager.extend(first, 8)
    first.num_computed_tokens = 8
    manager.register_computed(first, previously_computed=0)

    assert len(manager.find_prefix(make_sequence([5] * 8))) == 1
    assert len(manager.find_prefix(make_sequence([5] * 9))) == 2


def test_a_sequence_that_finds_no_room_takes_nothing() -> None:
    manager = BlockManager(2, 4)
    seq = make_sequence([1] * 9)

    assert not manager.extend(seq, 9)

    assert manager.num_free_blocks == 2 and seq.block_table == []


def test_the_end_of_a_chain_is_evicted_before_its_beginning() -> None:
    manager = BlockManager(3, 2)
    first = make_sequence([1, 2, 3, 4, 5, 6])
    assert manager.extend(first, 6)
    first.num_computed_tokens = 6
    manager.register_computed(first, previously_computed=0)
    manager.free(first)

    other = make_sequence([9])
    assert manager.extend(other, 1)

    assert len(manager.find_prefix(make_sequence([1, 2, 3, 4, 5, 6, 7]))) == 2
