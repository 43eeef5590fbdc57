"""The card of this Worker: what it is, as far as is known before its model is loaded and after."""

from __future__ import annotations

import secrets
import socket
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec

from gristmill.compute import WorkerConfig
from gristmill.fleet import OWN_POOL, Feature, WorkerCard, lane_of

#: Longer names of hosts are cut: a message has little room.
_MAX_NAME = 128


def first_card(config: WorkerConfig) -> WorkerCard:
    """What is known before the model is loaded: not how long its rows may be, so that nobody waits
    for a machine that ends without ever taking any. The id is this process's own, and random."""
    return WorkerCard(
        worker_id=f"wrk-{secrets.token_hex(8)}",
        host=socket.gethostname()[:_MAX_NAME],
        model=config.pin,
        device=config.device,
        max_row_tokens=0,
        max_num_seqs=config.max_num_seqs,
        window_tokens=config.max_model_len,
        adapters=tuple(sorted(adapter.label for adapter in config.adapters)),
        version=version("gristmill"),
    )


def plain_card(config: WorkerConfig, *, kv_tokens: int | None) -> WorkerCard:
    """Of a Worker whose Engine comes from elsewhere, and can do what our own can."""
    return replace(
        first_card(config),
        max_row_tokens=config.max_model_len,
        kv_tokens=kv_tokens,
        features=generator_features(),
    )


def lanes_of(card: WorkerCard, config: WorkerConfig) -> tuple[str, ...]:
    """What a Worker listens to whose model is loaded, each Lane once, the first one first."""
    own = {OWN_POOL: lane_of(card)}
    return tuple(dict.fromkeys(own.get(name, name) for name in config.lanes))


def generator_features() -> tuple[str, ...]:
    """What our own Engine can do with a model that generates."""
    features = [Feature.EMBED, Feature.GENERATE, Feature.LOGPROBS, Feature.SCORE]
    if find_spec("llguidance") is not None:
        features.append(Feature.GRAMMAR)
    return tuple(sorted(feature.value for feature in features))
