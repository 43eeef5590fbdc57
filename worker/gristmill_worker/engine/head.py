"""Logits at any positions of a step without running the whole model again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gristmill_worker.models.hook import forward_context
from gristmill_worker.models.probe import CallRecorder


class Head:
    """What makes logits of a model's hidden states: projection, scale, soft cap and the like.

    A causal language model of transformers is a backbone (`base_model`) and a few lines behind it.
    Those lines run as they are, over what the backbone gave before, so a row of logits has the
    same bits as if it had been asked for at once. A model that does not call its backbone as a
    module cannot be split like that: `is_split` says so after a forward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        backbone = getattr(model, "base_model", model)
        self._backbone: nn.Module | None = None if backbone is model else backbone
        self._output: Any = None

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Remember what the backbone gives in the forward pass inside, until `forget`."""
        self.forget()
        if self._backbone is None:
            yield
            return
        hook = self._backbone.register_forward_hook(self._remember)
        try:
            yield
        finally:
            hook.remove()

    def forget(self) -> None:
        self._output = None

    @property
    def is_split(self) -> bool:
        return self._output is not None

    def logits(self, indices: torch.Tensor) -> torch.Tensor:  # [R] int64 -> [R, vocab_size]
        """Rows of logits at packed positions of the forward pass that is remembered."""
        assert self._backbone is not None and self.is_split, "there is no forward pass to read"
        output = self._output
        # An instance attribute hides the method of the class; what the head passes is not used.
        self._backbone.forward = lambda *args, **kwargs: output
        try:
            ids = torch.zeros(1, 1, dtype=torch.long, device=indices.device)
            found = self._model(input_ids=ids, use_cache=False, logits_to_keep=indices)
        finally:
            del self._backbone.forward
        logits: torch.Tensor = found.logits[0]
        return logits

    def hidden_states(self) -> torch.Tensor:  # [T, hidden_size]
        """The last hidden states of all tokens of the forward pass that is remembered."""
        assert self.is_split, "there is no forward pass to read"
        states: torch.Tensor = self._output[0][0]
        return states

    def shows_hidden_states(self) -> bool:
        """Whether what the backbone gives is what the model itself calls its last hidden states.

        Attention answers with zeros here, which is as good as any: the two are compared, not read.
        """
        try:
            with self.remembering(), forward_context(CallRecorder()):
                said = self._model(
                    input_ids=torch.zeros(1, 3, dtype=torch.long, device=self._device),
                    position_ids=torch.arange(3, device=self._device)[None],
                    use_cache=False,
                    output_hidden_states=True,
                ).hidden_states
            return self.is_split and said is not None and torch.equal(said[-1], self._output[0])
        finally:
            self.forget()

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    def _remember(self, module: nn.Module, args: Any, output: Any) -> None:
        self._output = output
