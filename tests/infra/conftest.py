"""What lies in infra/, held to what the code knows: commands, settings, metrics, routes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
