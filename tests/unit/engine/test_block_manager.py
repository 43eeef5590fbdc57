"""Properties of the BlockManager: Blocks are never lost, shared wrongly or written twice."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gristmill.types import Job, Prompt, Row, RowError, SamplingParams
from gristmill_worker.engine.base import NOTHING
from gristmill_worker.engine.block_manager import BlockManager, Prefix
from gristmill_worker.engine.sequence import Sequence

NUM_BLOCKS, BLOCK_SIZE = 12, 3


def make_sequence(token_ids: list[int]) -> Sequence:
    job = Job((Row(0, "row"),), (Prompt(tuple(token_ids)),), SamplingParams(4))
    return Sequence("seq", job, 0, NOTHING)


class _Life(RuleBasedStateMachine):
    """Sequences come, compute, grow and go; `content` says which text each slot really ends."""

    sequences = Bundle("sequences")

    def __init__(self, hash_block: object = None) -> None:
        super().__init__()
        self.manager = self.make_manager()
        self.live: list[Sequence] = []
        self.content: dict[tuple[int, int], tuple[int, ...]] = {}

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
        seq.num_computed_tokens = prefix.num_tokens
        assert seq.num_computed_tokens < seq.num_tokens
        assert self.manager.extend(seq, seq.num_tokens)
        if prefix.fork is not None:
            self.copy(prefix.fork, seq.block_table[len(prefix.blocks)])
        for position in range(prefix.num_tokens):  # what is shared must hold exactly this prefix
            assert self.content[self.slot(seq, position)] == tuple(token_ids[: position + 1])
        self.live.append(seq)
        return seq

    def slot(self, seq: Sequence, position: int) -> tuple[int, int]:
        return seq.block_table[position // BLOCK_SIZE], position % BLOCK_SIZE

    def copy(self, source: int, target: int) -> None:
        assert not any(target in other.block_table for other in self.live), "a Block in use"
        for offset in range(BLOCK_SIZE):
            self.content[target, offset] = self.content.get((source, offset), ())

    @rule(seq=sequences, num_tokens=st.integers(1, 5))
    def compute(self, seq: Sequence, num_tokens: int) -> None:
        if seq not in self.live or seq.num_uncomputed_tokens == 0:
            return
        before = seq.num_computed_tokens
        seq.num_computed_tokens = min(seq.num_tokens, before + num_tokens)
        for position in range(before, seq.num_computed_tokens):
            block, offset = self.slot(seq, position)
            holders = [other for other in self.live if block in other.block_table]
            assert holders == [seq], "a Block with two writers"
            self.content[block, offset] = tuple(seq.token_ids[: position + 1])
        self.manager.register_computed(seq, previously_computed=before)

    @rule(seq=sequences, token_id=st.integers(0, 1))
    def grow(self, seq: Sequence, token_id: int) -> None:
        if seq in self.live and self.manager.extend(seq, seq.num_tokens + 1):
            seq.token_ids.append(token_id)

    @rule(seq=consumes(sequences), failed=st.booleans())
    def end(self, seq: Sequence, failed: bool) -> None:
        if seq in self.live:
            seq.error = RowError("failed", "It failed.") if failed else None
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

    assert manager.find_prefix(make_sequence([5] * 8)).num_tokens == 7
    assert manager.find_prefix(make_sequence([5] * 9)) == Prefix((0, 1), 8)


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

    assert len(manager.find_prefix(make_sequence([1, 2, 3, 4, 5, 6, 7])).blocks) == 2


def computed(manager: BlockManager, token_ids: list[int]) -> Sequence:
    seq = make_sequence(token_ids)
    prefix = manager.find_prefix(seq)
    manager.adopt_prefix(seq, prefix)
    assert manager.extend(seq, len(token_ids))
    seq.num_computed_tokens = len(token_ids)
    manager.register_computed(seq, previously_computed=prefix.num_tokens)
    return seq


def test_a_prefix_that_ends_inside_a_block_is_forked_from_the_best_block() -> None:
    manager = BlockManager(16, 8)
    text = list(range(100, 120))
    less = computed(manager, [*text[:13], 7, 7, 7, 7])
    most = computed(manager, [*text[:15], 8])

    prefix = manager.find_prefix(make_sequence([*text[:15], 9]))

    assert prefix == Prefix((less.block_table[0],), 15, most.block_table[1])


def test_a_block_that_is_not_full_is_forked_while_its_owner_runs_and_after() -> None:
    manager = BlockManager(16, 8)
    owner = computed(manager, [1, 2, 3, 4, 5])
    block = owner.block_table[0]

    assert manager.find_prefix(make_sequence([1, 2, 3, 4, 9])) == Prefix((), 4, block)
    manager.free(owner)
    assert manager.find_prefix(make_sequence([1, 2, 3, 4, 9])) == Prefix((), 4, block)
    other = make_sequence([6] * 8 * 16)
    assert manager.extend(other, 8 * 16)
    assert manager.find_prefix(make_sequence([1, 2, 3, 4, 9])) == Prefix()


def test_what_a_row_with_an_error_held_is_found_by_nobody() -> None:
    manager = BlockManager(16, 4)
    good = computed(manager, [1] * 4 + [2] * 4)
    bad = computed(manager, [1] * 4 + [3] * 6)
    bad.error = RowError("model_output_invalid", "Not a number.")
    manager.free(bad)

    assert manager.find_prefix(make_sequence([1] * 4 + [3] * 7)) == Prefix()
    manager.check_integrity([good])
    manager.free(good)
    assert manager.num_free_blocks == 16


def test_of_a_block_only_what_is_computed_is_forked() -> None:
    manager = BlockManager(16, 8)
    owner = make_sequence([1, 2, 3, 4, 5, 6, 7])
    assert manager.extend(owner, 7)
    owner.num_computed_tokens = 3
    manager.register_computed(owner, previously_computed=0)

    assert manager.find_prefix(make_sequence([1, 2, 3, 4, 5, 6, 9])).num_tokens == 3


def test_a_prefix_of_less_than_a_quarter_of_a_block_is_computed_again() -> None:
    manager = BlockManager(16, 16)
    computed(manager, [1, 2, 3, 4, 5])

    assert manager.find_prefix(make_sequence([1, 2, 3, 9])) == Prefix()
    assert manager.find_prefix(make_sequence([1, 2, 3, 4, 9])).num_tokens == 4


def test_the_block_to_fork_may_be_the_one_that_is_handed_out() -> None:
    manager = BlockManager(1, 8)
    manager.free(computed(manager, [1, 2, 3, 4, 5]))
    seq = make_sequence([1, 2, 3, 4, 9])

    prefix = manager.find_prefix(seq)
    assert manager.num_blocks_to_admit(prefix, 5) == 1
    manager.adopt_prefix(seq, prefix)

    assert manager.extend(seq, 5) and seq.block_table == [prefix.fork]
    manager.check_integrity([seq])


def test_forks_are_sought_among_few_blocks_however_many_begin_alike() -> None:
    manager = BlockManager(4000, 8)
    for i in range(3000):
        computed(manager, [1, 2, 3, 1000 + i, 1000 + i])

    assert manager.find_prefix(make_sequence([1, 2, 3, 3999, 3999, 5])).num_tokens == 5
    assert manager.find_prefix(make_sequence([1, 2, 3, 1000, 1000, 5])).num_tokens == 3
