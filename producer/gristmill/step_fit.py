"""How long a step takes by what is in it, fitted to the steps that a machine makes."""

from __future__ import annotations

from math import sqrt

from gristmill.fleet import StepTime

#: What was measured so many seconds of work ago counts half.
_HALF_LIFE_S = 300.0
#: What each term is held to 0 by, as a share of what was measured of it: where steps do not tell
#: terms apart, the time is put down to the step itself and to prompts rather than to rows and their
#: context. Of work that a machine never had, such as many short rows, that is the kind guess: it
#: gets some, and is measured by it.
_HELD = (1e-4, 5e-3, 1e-3, 1e-4)
#: Of a step that has both, prompts and rows take so much at least: what is lost in the scatter of
#: steps is quick, but it takes some time.
_LEAST_SHARE = 1e-3
#: What has faded so far (days of work without any of it) is not told from rounding any more.
_NOTHING = 1e-100
#: The fit is made again when there are so many seconds of work more, as a share of what it is of.
_MORE = 0.05
#: Seconds of a step, a row, a token in the KV cache, a prompt token.
_Terms = tuple[float, float, float, float]
_PAIRS = tuple((i, j) for i in range(4) for j in range(i + 1))


class StepFit:
    """Least squares of relative errors, over sums in which the past fades, and no term below 0.

    The terms: a step at all, each row that decodes in it, each token in the KV cache, each prompt
    token. A second of work counts as much as any other, so that one step which takes long for a
    reason of its own (a compiler, a swapped page) hardly counts.
    """

    __slots__ = ("_all_s", "_has_decoded", "_new_s", "_products", "_sums", "_terms")

    def __init__(self) -> None:
        #: Of each two terms, as _PAIRS has them, and of each alone.
        self._products = [0.0] * len(_PAIRS)
        self._sums = [0.0] * 4
        #: Seconds since it was fitted, and in all; both fade.
        self._new_s = self._all_s = 0.0
        self._terms: _Terms = (0.0, 0.0, 0.0, 0.0)
        self._has_decoded = False

    def add(
        self,
        step_s: float,
        *,
        num_rows: float,
        num_context: float,
        num_prefill: float,
        num_steps: int = 1,
    ) -> None:
        """So many steps, alike, took `step_s` each."""
        self._has_decoded |= num_rows > 0
        parts = (1.0, num_rows, num_context, num_prefill)
        fade = 0.5 ** (num_steps * step_s / _HALF_LIFE_S)
        weight = num_steps / step_s
        self._products = [
            old * fade + weight * parts[i] * parts[j]
            for old, (i, j) in zip(self._products, _PAIRS, strict=True)
        ]
        self._sums = [
            old * fade + num_steps * part for old, part in zip(self._sums, parts, strict=True)
        ]
        self._new_s += num_steps * step_s
        self._all_s = self._all_s * fade + num_steps * step_s
        if self._new_s > _MORE * self._all_s:
            self._new_s = 0.0
            self._terms = self._solve()

    @property
    def step_time(self) -> StepTime | None:
        """None until something was decoded. Any thread may ask."""
        base_s, row_s, context_s, _ = self._terms
        return StepTime(base_s, row_s, context_s) if self._has_decoded else None

    def prefill_share(self, *, num_rows: float, num_context: float, num_prefill: float) -> float:
        """Of the time of a step, what its prompt tokens take; the rest goes to those that decode,
        and all if there are none."""
        if not num_rows or not num_prefill:
            return float(num_prefill > 0)
        base_s, row_s, context_s, prefill_s = self._terms
        decode_s = base_s + row_s * num_rows + context_s * num_context
        of_prompts_s = prefill_s * num_prefill
        both_s = decode_s + of_prompts_s
        if both_s <= 0:
            return num_prefill / (num_prefill + num_rows)
        return min(max(of_prompts_s / both_s, _LEAST_SHARE), 1 - _LEAST_SHARE)

    def _solve(self) -> _Terms:
        """The best terms; one that would be below 0 is left out, the worst first."""
        squares = dict(zip(_PAIRS, self._products, strict=True))
        scales = [sqrt(squares[i, i]) for i in range(4)]
        used = [i for i in range(4) if scales[i] > _NOTHING]
        found = [0.0] * 4
        while used:
            # Each term in units of what was measured of it, so that its share of the time counts.
            matrix = [
                [squares[max(i, j), min(i, j)] / (scales[i] * scales[j]) for j in used]
                for i in used
            ]
            for k, i in enumerate(used):
                matrix[k][k] += _HELD[i]
            solved = _solved(matrix, [self._sums[i] / scales[i] for i in used])
            worst = min(range(len(used)), key=solved.__getitem__)
            if solved[worst] >= 0:
                for i, value in zip(used, solved, strict=True):
                    found[i] = value / scales[i]
                break
            del used[worst]
        return found[0], found[1], found[2], found[3]


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss elimination; what is on the diagonal is positive and outweighs, so nothing is moved."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i]
            right[j] -= factor * right[i]
            for k in range(i, size):
                matrix[j][k] -= factor * matrix[i][k]
    found = [0.0] * size
    for i in reversed(range(size)):
        known = sum(matrix[i][k] * found[k] for k in range(i + 1, size))
        found[i] = (right[i] - known) / matrix[i][i]
    return found
