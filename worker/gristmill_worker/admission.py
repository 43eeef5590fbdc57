"""How many Sequences the Engine gets at once: all of them, until the device runs out of memory."""

from __future__ import annotations

#: So many steps without running out of memory, and twice as many Sequences are tried again.
_STEPS_TO_TRUST = 500


class Admission:
    """Halves the number when memory runs out, and doubles it again after a while."""

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        #: None: no limit but the Engine's own.
        self._limit: int | None = None
        self._num_good_steps = 0

    def admits(self, num_live: int) -> bool:
        """Whether the Engine may get one more Sequence beside those that it has."""
        return self._limit is None or num_live < self._limit

    def shrink(self, num_live: int) -> None:
        """The memory did not suffice for so many; the Engine computed max_num_seqs at most."""
        self._limit = max(min(num_live, self._max_num_seqs) // 2, 1)
        self._num_good_steps = 0

    def record_step(self) -> None:
        if self._limit is None:
            return
        self._num_good_steps += 1
        if self._num_good_steps >= _STEPS_TO_TRUST:
            self._num_good_steps = 0
            self._limit *= 2
            if self._limit >= self._max_num_seqs:
                self._limit = None
