"""Finds models for this machine: which device and dtype one will run with belongs to its pin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.adapters import Adapter, find_adapters
from gristmill.compute import convert_gguf, find_device, find_dtype
from gristmill.errors import UsageError
from gristmill.models import Model, find_model, with_adapter
from gristmill.settings import Settings


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Models, with each of which lines may be answered, and the device ("cpu" or "cuda").

    `models` begins with those that `adapters` are for. Without any there is no device.
    """

    models: tuple[Model, ...]
    adapters: tuple[Adapter, ...]
    device: str

    @property
    def base(self) -> Model:
        """The first model that was asked for."""
        return self.models[0]

    def asked_for(self, name: str) -> Model:
        """What a file is for whose first line says so; with none that fits, the checks of its lines
        say so, line by line."""
        return next((model for model in self.models if model.serves(name)), self.base)


def find_catalogue(
    names: Sequence[str],
    adapters: Sequence[str],
    *,
    settings: Settings,
    revision: str | None = None,
    served_names: tuple[str, ...] = (),
) -> Catalogue:
    """`adapters` as their option has them. Raises what find_model, find_adapters and with_adapter
    do."""
    found = find_adapters(adapters)
    models: list[Model] = []
    device = ""  # asking for one takes seconds
    for name in names:
        model, device = find_local_model(
            name, settings=settings, revision=revision, served_names=served_names
        )
        models.append(model)
    for adapter in found:
        _check_name(adapter, models)
    adapted = [with_adapter(_base_of(adapter, models), adapter) for adapter in found]
    return Catalogue((*models, *adapted), found, device)


def _check_name(adapter: Adapter, models: Sequence[Model]) -> None:
    """Lines that ask for it must not be answered by one of the models."""
    other = next((model for model in models if model.serves(adapter.name)), None)
    if other is not None:
        raise UsageError(
            f"The adapter {adapter.name} has a name of the model {other.name}. Give it another "
            f"one: --adapter NAME={adapter.path}"
        )


def _base_of(adapter: Adapter, models: Sequence[Model]) -> Model:
    if len(models) == 1 and not adapter.base:
        return models[0]
    base = next((model for model in models if model.serves(adapter.base)), None)
    if base is None:
        known = ", ".join(model.name for model in models)
        raise UsageError(
            f"The adapter {adapter.name} is for {adapter.base or 'one of several models'!r}, and "
            f"the models are: {known or 'none'}. Say which with "
            f"--adapter {adapter.name}@MODEL={adapter.path}"
        )
    return base


def find_local_model(
    name: str,
    *,
    settings: Settings,
    revision: str | None,
    served_names: tuple[str, ...] = (),
) -> tuple[Model, str]:
    """The model, and the device ("cpu" or "cuda") that it runs on. Raises what find_model does."""
    device = find_device(settings.device)
    model = find_model(
        name,
        settings=settings,
        revision=revision,
        dtype=find_dtype(settings.dtype, device),
        convert_gguf=convert_gguf,
        served_names=served_names,
    )
    return model, device
