"""Every setting of Gristmill: one class, prefix GRISTMILL_, a default and a unit for each.

Nothing else reads the environment. The README has a row for each field (a test compares the two).
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gristmill.messages import CONTROL_LANE
from gristmill.queues.base import is_lane


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="GRISTMILL_", frozen=True)

    cache_dir: Path = Field(
        Path("~/.cache/gristmill").expanduser(), description="Where converted models are kept."
    )

    # Reading requests
    max_rows: int = Field(10_000_000, ge=1, description="Most rows that one batch may have.")
    max_embedding_inputs: int = Field(
        10_000_000, ge=1, description="Most inputs in all rows of a batch of embeddings."
    )
    max_line_bytes: int = Field(
        16 * 2**20, ge=1024, description="Longest input line that is read, in bytes."
    )
    max_errors_shown: int = Field(
        100, ge=1, description="How many bad lines of a failed batch are named."
    )

    # Ingest and dispatch
    merge_identical_rows: bool = Field(
        True, description="Rows that must get the same answer are computed once."
    )
    shard_max_jobs: int = Field(256, ge=1, description="Most Jobs in one Shard.")
    shard_max_tokens: int = Field(
        60_000, ge=1, description="Prompt tokens and expected output tokens of one Shard."
    )
    dispatch_window_shards: int = Field(
        4, ge=1, description="Shards kept waiting on each Lane; the rest wait in the Ledger."
    )

    prices: Path | None = Field(
        None, description="JSON file with the prices of models; see prices.py for its form."
    )

    # Leases and results
    lease_s: float = Field(60.0, gt=0, description="How long a Lease lasts without renewal.")
    flush_interval_s: float = Field(
        5.0, gt=0, description="Seconds between two Segments; what kill -9 can cost at most."
    )
    quiet_flush_interval_s: float = Field(
        30.0, gt=0, description="The same while no row has finished (checkpoints only)."
    )
    resend_after_s: float = Field(
        120.0, gt=0, description="A Shard silent for so long is rung again; doubles each time."
    )
    refuse_after_s: float = Field(
        600.0, ge=0, description="Rows that no known machine can run are refused after so long."
    )
    fleet_max_row_tokens: int = Field(
        0,
        ge=0,
        description="What your largest machine ever takes; rows up to it wait (0: unknown).",
    )
    worker_tokens_per_s: float = Field(
        1000.0, gt=0, description="Taken for a worker's tokens per second until one has worked."
    )

    # The API
    max_file_bytes: int = Field(
        8 * 2**30, ge=1, description="Largest file that can be uploaded, in bytes."
    )
    file_lifetime_s: int = Field(
        30 * 24 * 3600, ge=1, description="Files are removed after so long, unless asked else."
    )
    work_lifetime_s: int = Field(
        7 * 24 * 3600, ge=1, description="Shards and Segments of an ended batch stay for so long."
    )
    key_pepper: SecretStr | None = Field(
        None,
        min_length=16,
        description="Secret under which API keys are hashed; the same in all API processes.",
    )

    failed_logins_per_min: int = Field(
        120, ge=1, description="Wrong keys that one address may show to one API process."
    )
    audit_lifetime_s: int = Field(
        365 * 24 * 3600, ge=1, description="Entries of the audit log are removed after so long."
    )

    # Quotas: what each tenant may use that has no number of its own; none is no limit
    quota_requests_per_min: int | None = Field(
        6000, ge=1, description="Requests in one minute, over all API processes."
    )
    quota_batches_in_flight: int | None = Field(
        10_000, ge=1, description="Batches that are not at their end."
    )
    quota_rows_per_batch: int | None = Field(None, ge=1, description="Rows of one batch.")
    quota_rows_in_flight: int | None = Field(
        None, ge=1, description="Rows without a result in all batches together."
    )
    quota_queued_tokens: int | None = Field(
        None, ge=1, description="Prompt tokens that wait in all batches together."
    )
    quota_stored_bytes: int | None = Field(
        None, ge=1, description="Bytes of uploaded files and result files together."
    )

    # Webhooks
    webhook_secret_keys: SecretStr | None = Field(
        None,
        description="Secrets under which those of webhooks are sealed in the Ledger, separated by "
        "commas: the first seals, each opens; default: the key pepper.",
    )
    webhook_allowed_networks: str | None = Field(
        None,
        description="Private networks that webhooks may go to, by http and any port too: CIDRs, "
        "separated by commas.",
    )
    webhook_ports: str = Field(
        "443", description="Ports of public addresses that webhooks may go to."
    )

    @field_validator("webhook_secret_keys")
    @classmethod
    def _check_secret_keys(cls, value: SecretStr | None) -> SecretStr | None:
        keys = None if value is None else items_of(value.get_secret_value())
        if keys is not None and (not keys or min(map(len, keys)) < 16):
            raise ValueError("each secret has at least 16 characters; commas stand between them")
        return value

    @field_validator("webhook_allowed_networks")
    @classmethod
    def _check_networks(cls, value: str | None) -> str | None:
        for item in items_of(value):
            ipaddress.ip_network(item)
        return value

    @field_validator("webhook_ports")
    @classmethod
    def _check_ports(cls, value: str) -> str:
        if not all(item.isdecimal() and 0 < int(item) < 65536 for item in items_of(value)):
            raise ValueError("write numbers from 1 to 65535, separated by commas")
        return value

    # Processes
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="Lines of the log; auto is text on a terminal, JSON elsewhere."
    )
    machine_price_per_hour: float | None = Field(
        None, ge=0, description="What a worker's machine costs, for the metrics of cost."
    )
    lanes: str = Field(
        "pool,bulk",
        description="Lanes that a worker listens to, the first one first, separated by commas; "
        "pool is that of workers with the same abilities.",
    )
    watchdog_s: float = Field(
        120.0, gt=0, description="No step of the engine for so long, with work, ends the worker."
    )
    drain_grace_s: float = Field(
        30.0, gt=0, description="After SIGTERM, the time that a worker has to save its work."
    )
    outage_patience_s: float = Field(
        600.0, ge=0, description="How long a worker waits out a queue or store that is away."
    )
    spot_notice: Literal["off", "aws", "aws-early"] = Field(
        "off",
        description="Whether a worker asks its machine if it will be taken away, and drains then; "
        "aws-early: when AWS recommends to look for another one, too.",
    )
    spot_notice_url: str = Field(
        "http://169.254.169.254",
        pattern="^http://[^/]+/?$",
        description="Where the metadata service of the machine is asked.",
    )
    cloudwatch_namespace: str | None = Field(
        None,
        pattern="^[A-Za-z0-9_./#-]{1,255}$",
        description="Namespace of CloudWatch that control publishes backlog and workers to.",
    )

    @field_validator("lanes")
    @classmethod
    def _check_lanes(cls, value: str) -> str:
        bad = [item for item in items_of(value) if not is_lane(item) or item == CONTROL_LANE]
        if bad or not items_of(value):
            raise ValueError(
                "write names of Lanes (48 of A-Z a-z 0-9 _ - at most), separated by commas; "
                f"{CONTROL_LANE} is none that work waits on"
            )
        return value

    @property
    def lane_names(self) -> tuple[str, ...]:
        """What a Worker listens to, each Lane once."""
        return tuple(dict.fromkeys(items_of(self.lanes)))

    # Engine
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; auto takes a GPU if there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="The numbers of the model; auto is float32 on a CPU, bfloat16 on a GPU."
    )
    max_num_seqs: int = Field(64, ge=1, description="Most Sequences computed in one step.")
    max_num_batched_tokens: int = Field(
        512, ge=16, description="Most tokens computed in one step, prefill and decode together."
    )
    drafts: bool = Field(True, description="Draft tokens fill steps that have few rows (CPU only).")
    block_size: int = Field(16, ge=1, description="Tokens in one Block of the KV cache.")
    kv_memory_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the free memory that the KV cache may take; default: 0.5 of main "
        "memory, 0.9 of what the largest step leaves of a GPU's.",
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Longest prompt plus output in tokens; default: the model's own."
    )
    num_threads: int | None = Field(
        None, ge=1, description="CPU threads of the engine; default: the cores it may use."
    )


def items_of(text: str | None) -> list[str]:
    """What stands between the commas."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]
