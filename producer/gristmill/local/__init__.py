"""The whole pipeline in one process: `gristmill run`, by the functions that the service uses."""

from __future__ import annotations

from gristmill.local.pipeline import run
from gristmill.local.values import Fleet, Phase, Progress, RunConfig, Summary

__all__ = ["Fleet", "Phase", "Progress", "RunConfig", "Summary", "run"]
