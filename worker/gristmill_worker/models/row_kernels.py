"""rows.c, called with torch tensors. Where no C compiler is present there are no RowKernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch

from gristmill_worker.native import Kernel, load_native

_SOURCE = Path(__file__).with_name("rows.c")


@dataclass(frozen=True, slots=True)
class GateForm:
    """An activation of the form x * sigmoid(slope * (x + cubic * x^3))."""

    slope: float
    cubic: float = 0.0


class RowKernels:
    """One pass over memory each, and a row has the same bits in any company.

    All tensors are float32 on the CPU, their last dimension dense.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._rms_norm = Kernel(library, "gristmill_rms_norm", "3P5qf")
        self._gate = Kernel(library, "gristmill_gate", "3P4q2f")
        self._rotate = Kernel(library, "gristmill_rotate", "6P9q")
        self._log_sum_exp = Kernel(library, "gristmill_log_sum_exp", "2P3q")

    @classmethod
    def load(cls, cache_dir: Path) -> RowKernels | None:
        """The kernels, built if need be; None where no C compiler can build them."""
        library = load_native(_SOURCE, cache_dir)
        return None if library is None else cls(library)

    def rms_norm(
        self,
        x: torch.Tensor,  # [..., width]
        weight: torch.Tensor | None,  # [width], dense
        eps: float,
    ) -> torch.Tensor:  # [..., width]
        """x / sqrt(mean(x^2) + eps) * weight (arXiv:1910.07467)"""
        shape = x.shape
        width = shape[-1]
        if x.is_contiguous():
            outer, inner, outer_stride, inner_stride = 1, x.numel() // width, 0, width
        elif x.dim() == 4 and shape[0] == 1 and x.stride(3) == 1:  # heads within the rows
            outer, inner, outer_stride, inner_stride = *shape[1:3], *x.stride()[1:3]
        else:
            return self.rms_norm(x.contiguous(), weight, eps)
        out = torch.empty(shape)
        self._rms_norm(
            x.data_ptr(),
            0 if weight is None else weight.data_ptr(),
            out.data_ptr(),
            outer,
            inner,
            width,
            outer_stride,
            inner_stride,
            eps,
        )
        return out

    def gate(
        self,
        gate: torch.Tensor,  # [..., width]
        up: torch.Tensor | None,  # [..., width]
        form: GateForm,
    ) -> torch.Tensor:  # [..., width]
        """activation(gate) * up, or the activation alone."""
        gate, row_stride = _rows(gate)
        up_stride = row_stride
        if up is not None:
            up, up_stride = _rows(up)
        width = gate.shape[-1]
        out = torch.empty(gate.shape)
        self._gate(
            gate.data_ptr(),
            0 if up is None else up.data_ptr(),
            out.data_ptr(),
            gate.numel() // width,
            width,
            row_stride,
            up_stride,
            form.slope,
            form.cubic,
        )
        return out

    def rotate(
        self,
        query: torch.Tensor,  # [1, num_heads, T, dim]
        key: torch.Tensor,  # [1, num_kv_heads, T, dim]
        cos: torch.Tensor,  # [1, T, rotary_dim], dense
        sin: torch.Tensor,  # [1, T, rotary_dim], dense
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys rotated by halves of their first `rotary_dim` components
        (arXiv:2104.09864), token by token in memory."""
        _, num_heads, num_tokens, dim = query.shape
        num_kv_heads = key.shape[1]
        _, query_head_stride, query_token_stride, _ = query.stride()
        _, key_head_stride, key_token_stride, _ = key.stride()
        rotated_query = torch.empty(1, num_tokens, num_heads, dim)
        rotated_key = torch.empty(1, num_tokens, num_kv_heads, dim)
        self._rotate(
            query.data_ptr(),
            key.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            rotated_query.data_ptr(),
            rotated_key.data_ptr(),
            num_tokens,
            num_heads,
            num_kv_heads,
            dim,
            cos.shape[-1],
            query_token_stride,
            query_head_stride,
            key_token_stride,
            key_head_stride,
        )
        return rotated_query.transpose(1, 2), rotated_key.transpose(1, 2)

    def log_sum_exp(
        self,
        x: torch.Tensor,  # [R, width]
    ) -> torch.Tensor:  # [R] float64
        """log(sum(e^x)) of each row, within 1e-6; NaN where a row holds NaN or infinity."""
        x, row_stride = _rows(x)
        out = torch.empty(x.shape[0], dtype=torch.float64)
        self._log_sum_exp(x.data_ptr(), out.data_ptr(), *x.shape, row_stride)
        return out


def _rows(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The tensor and the distance of its rows in memory, copied only where they lie unevenly."""
    if x.dim() == 3 and x.shape[0] == 1 and x.stride(2) == 1:
        return x, x.stride(1)
    if x.dim() == 2 and x.stride(1) == 1:
        return x, x.stride(0)
    return x.contiguous(), x.shape[-1]
