"""Fused norms, activations and rotary positions: the model's own numbers, and a row's own bits."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import load_row_kernels, make_model
from torch import nn
from transformers.activations import ACT2FN
from transformers.models.cohere import modeling_cohere
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

from gristmill_worker.models.fuse import fuse_modules, fuse_positions
from gristmill_worker.models.gated import FusedActivation, FusedGatedMLP, fuse_activations
from gristmill_worker.models.hook import ATTENTION
from gristmill_worker.models.norm import FusedRMSNorm, fuse_norms
from gristmill_worker.models.probe import CallRecorder, forget_pad_token, run_three_tokens
from gristmill_worker.models.rotary import fuse_rotary
from gristmill_worker.models.row_kernels import GateForm, RowKernels
from gristmill_worker.models.watch import called_with_one_tensor

SILU, TANH_GELU = GateForm(1.0), GateForm(1.5957691216057308, 0.044715)


@pytest.fixture
def kernels() -> RowKernels:
    found = load_row_kernels()
    if found is None:
        pytest.skip("needs a C compiler")
    return found


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 3


@pytest.mark.parametrize("width", [1, 7, 16, 33, 100, 576])
def test_a_norm_equals_its_formula_for_any_width_and_layout(
    kernels: RowKernels, width: int
) -> None:
    weight = randn(width)
    heads = randn(1, 5, 6 * width)[..., : 4 * width].view(1, 5, 4, width)
    for x in (randn(3, width), heads, heads.transpose(1, 2), randn(1, width, 3).transpose(1, 2)):
        expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)

        assert_close(kernels.rms_norm(x, weight, 1e-5), expected * weight)
        assert_close(kernels.rms_norm(x, None, 1e-5), expected)


@pytest.mark.parametrize("width", [1, 7, 16, 33, 1536])
def test_a_gate_equals_its_formula_for_any_width_and_layout(
    kernels: RowKernels, width: int
) -> None:
    both = randn(1, 5, 2 * width)
    gate, up = both[..., :width], both[..., width:]
    silu = nn.functional.silu(gate)

    assert_close(kernels.gate(gate, up, SILU), silu * up)
    assert_close(kernels.gate(gate[0], up[0], SILU), (silu * up)[0])
    assert_close(kernels.gate(gate.transpose(1, 2), None, SILU), silu.transpose(1, 2))
    assert_close(kernels.gate(gate, None, TANH_GELU), nn.functional.gelu(gate, approximate="tanh"))


def test_activations_are_right_at_their_ends(kernels: RowKernels) -> None:
    x = torch.tensor([-1e30, -1000.0, -88.0, -87.0, -1e-30, 0.0, 1e-30, 87.0, 88.0, 1000.0, 1e30])

    found = kernels.gate(x, None, SILU)

    assert torch.allclose(found, x * torch.sigmoid(x), rtol=1e-6, atol=1e-7)
    assert kernels.gate(torch.tensor([float("nan")]), None, SILU).isnan().all()
    assert kernels.gate(torch.tensor([float("inf")]), None, SILU).isposinf().all()


@pytest.mark.parametrize("num_rows", [1, 2, 3, 50, 91, 133])
def test_a_row_has_the_same_bits_in_any_company(
    kernels: RowKernels, num_rows: int, num_threads: int
) -> None:
    for width in (100, 1536):
        x, weight = randn(1, 200, 2 * width), randn(width)
        low, high = x[..., :width], x[..., width:]
        part = slice(7, 7 + num_rows)

        assert torch.equal(
            kernels.rms_norm(low[:, part].contiguous(), weight, 1e-6),
            kernels.rms_norm(low.contiguous(), weight, 1e-6)[:, part],
        )
        for form in (SILU, TANH_GELU):
            expected = kernels.gate(low, high, form)[:, part]
            assert torch.equal(kernels.gate(low[:, part], high[:, part], form), expected)
            alone = kernels.gate(low[:, part].contiguous(), high[:, part].contiguous(), form)
            assert torch.equal(alone, expected)
    query, key = (randn(1, 200, heads, 64).transpose(1, 2) for heads in (9, 3))
    cos, sin = randn(1, 200, 64), randn(1, 200, 64).flip(1)
    together = kernels.rotate(query, key, cos, sin)
    alone_pair = kernels.rotate(
        query[:, :, part].contiguous(),
        key[:, :, part],
        cos[:, part].contiguous(),
        sin[:, part].contiguous(),
    )
    for found, expected in zip(alone_pair, together, strict=True):
        assert torch.equal(found, expected[:, :, part])
    logits = randn(200, 4097)
    assert torch.equal(kernels.log_sum_exp(logits[part]), kernels.log_sum_exp(logits)[part])


@pytest.mark.parametrize("width", [1, 15, 16, 4097, 49152])
@pytest.mark.parametrize("spread", [0.01, 1.0, 10.0])
def test_log_sum_exp_is_that_of_float64(kernels: RowKernels, width: int, spread: float) -> None:
    logits = torch.cat((spread * randn(7, width), 1e4 + randn(1, width), -1e4 + randn(1, width)))
    expected = logits.double().logsumexp(-1)
    torch.testing.assert_close(kernels.log_sum_exp(logits), expected, rtol=0, atol=2e-7)


def test_log_sum_exp_passes_over_what_is_impossible_and_hands_on_what_is_no_number(
    kernels: RowKernels,
) -> None:
    logits = randn(4, 37)
    logits[0, ::2] = float("-inf")
    logits[1, 36], logits[2, 3] = float("nan"), float("inf")
    logits[3] = float("-inf")
    found = kernels.log_sum_exp(logits)
    assert abs(found[0] - logits[0].double().logsumexp(-1)) < 2e-7
    assert found[1:].isnan().all()


def _widths(model: nn.Module) -> dict[nn.Module, int]:
    return called_with_one_tensor(model, lambda: model(randn(1, 3, 24)))


class _Clamped(nn.Module):
    """What looks like a norm, and is none for large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(24))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clamp(max=1e6)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def test_norms_are_found_by_what_they_do(kernels: RowKernels) -> None:
    norms = [
        modeling_llama.LlamaRMSNorm(24, eps=1e-6),
        Gemma3RMSNorm(24, eps=1e-5),
        nn.RMSNorm(24, eps=1e-5),
        nn.LayerNorm(24),
        modeling_cohere.CohereLayerNorm(24),
        _Clamped(),
    ]
    model = nn.Sequential(*norms).eval().requires_grad_(False)
    for norm in model:
        norm.weight.copy_(torch.randn(24))
    plain = copy.deepcopy(model)

    fuse_norms(model, _widths(model), kernels)

    assert [type(norm) is FusedRMSNorm for norm in model] == [True] * 3 + [False] * 3
    x = randn(1, 9, 24) * 1e-3
    for found, expected in zip(model, plain, strict=True):
        assert_close(found(x), expected(x))


class _MLP(nn.Module):
    def __init__(self, act: str, limit: float | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40), nn.Linear(24, 40)
        self.last, self.act = nn.Linear(40, 24), ACT2FN[act]
        self.limit, self.scale = limit, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self.second(x) * self.act(self.first(x))
        if self.limit is not None:
            product = product.clamp(-self.limit, self.limit)
        return self.last(product) * self.scale


def test_gated_mlps_are_found_by_what_they_do(kernels: RowKernels) -> None:
    kinds = [_MLP("silu"), _MLP("gelu_pytorch_tanh"), _MLP("gelu_new"), _MLP("quick_gelu")]
    others = [_MLP("gelu"), _MLP("relu"), _MLP("silu", limit=1e5), _MLP("silu", scale=0.999)]
    model = nn.Sequential(*kinds, *others).eval().requires_grad_(False)
    plain = copy.deepcopy(model)

    fuse_activations(model, _widths(model), kernels)

    assert [type(mlp) is FusedGatedMLP for mlp in model] == [True] * 4 + [False] * 4
    assert [type(mlp.act) is FusedActivation for mlp in model[4:]] == [False, False, True, True]
    for found, expected in zip(model, plain, strict=True):
        assert_close(found(randn(1, 9, 24)), expected(randn(1, 9, 24)))


def test_a_module_in_two_places_stays_one(kernels: RowKernels) -> None:
    shared = modeling_llama.LlamaRMSNorm(24)
    model = nn.Sequential(shared, nn.Sequential(shared)).eval()

    fuse_norms(model, _widths(model), kernels)

    assert type(model[0]) is FusedRMSNorm
    assert model[1][0] is model[0]


@pytest.mark.parametrize(
    ("name", "norms", "mlps", "rotations"),
    [("llama", 5, 2, 2), ("qwen3", 9, 2, 2), ("gemma2", 9, 2, 2), ("gemma3", 19, 3, 3),
     ("gpt2", 0, 0, 0), ("gpt_neox", 0, 0, 2), ("gpt_oss", 5, 0, 0)],
)  # fmt: skip
@torch.inference_mode()
def test_a_fused_model_computes_the_same(
    kernels: RowKernels, name: str, norms: int, mlps: int, rotations: int
) -> None:
    plain = make_model(name)
    plain.set_attn_implementation(ATTENTION)
    forget_pad_token(plain)
    fused = copy.deepcopy(plain)
    before = CallRecorder()
    run_three_tokens(plain, before)

    fuse_modules(fused, kernels)
    fuse_positions(fused, kernels)
    after = CallRecorder()
    run_three_tokens(fused, after)

    kinds = Counter(type(module) for module in fused.modules())
    assert (kinds[FusedRMSNorm], kinds[FusedGatedMLP]) == (norms, mlps)
    assert sum("forward" in vars(module) for module in fused.modules()) == rotations
    for found, expected in zip(after.calls, before.calls, strict=True):
        for tensor in ("query", "key", "value"):
            torch.testing.assert_close(
                getattr(found, tensor), getattr(expected, tensor), rtol=1e-4, atol=1e-4
            )


def test_rotation_is_replaced_in_this_model_only(kernels: RowKernels) -> None:
    function, model, other = modeling_llama.apply_rotary_pos_emb, *map(make_model, ["llama"] * 2)
    model.set_attn_implementation(ATTENTION)

    fuse_positions(model, kernels)

    assert modeling_llama.apply_rotary_pos_emb is function
    assert not any("forward" in vars(module) for module in other.modules())


class _Attention(nn.Module):
    """Calls a file's rotation under its name, as transformers' attention modules do."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        names = {"apply_rotary_pos_emb": function}
        exec("def forward(self, q, k, c, s): return apply_rotary_pos_emb(q, k, c, s)", names)
        self.__class__ = type("Attention", (_Attention,), {"forward": names["forward"]})


@pytest.mark.parametrize(
    ("function", "is_replaced"),
    [
        (modeling_llama.apply_rotary_pos_emb, True),
        (modeling_gpt_neox.apply_rotary_pos_emb, True),
        (modeling_cohere.apply_rotary_pos_emb, False),  # neighbours, not halves
        (lambda q, k, c, s: (q.clamp(max=1e9), k), False),
        (lambda q, k, c: (q, k), False),
    ],
)
@pytest.mark.parametrize("rotary_dim", [16, 8])
def test_rotations_are_found_by_what_they_do(
    kernels: RowKernels, function: Any, is_replaced: bool, rotary_dim: int
) -> None:
    arguments = [randn(1, 4, 3, 16), randn(1, 2, 3, 16), *[randn(1, 3, rotary_dim)] * 2]
    model = nn.Sequential(_Attention(function))
    model[0].requires_grad_(False)

    fuse_rotary(model, lambda: [], kernels)

    assert ("forward" in vars(model[0])) == is_replaced
    if is_replaced and (rotary_dim == 16 or function is modeling_gpt_neox.apply_rotary_pos_emb):
        for found, expected in zip(model[0](*arguments), function(*arguments), strict=True):
            assert_close(found, expected)
        # Several rows in a batch are the plain function's business.
        doubled = [torch.cat([argument] * 2) for argument in arguments]
        assert torch.equal(model[0](*doubled)[0], function(*doubled)[0])


def test_replacements_that_change_attention_calls_are_taken_back(kernels: RowKernels) -> None:
    model = nn.Sequential(_Attention(modeling_llama.apply_rotary_pos_emb))
    answers = iter([[(torch.ones(1), torch.ones(1))], [(torch.zeros(1), torch.ones(1))]])

    fuse_rotary(model, lambda: next(answers), kernels)

    assert "forward" not in vars(model[0])


def test_without_a_compiler_there_are_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")

    assert RowKernels.load(tmp_path) is None
