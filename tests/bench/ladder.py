"""How cost grows with rows and prompt length: prefill and decode of the demo model, rung by rung.

Usage: ladder.py [--rows 1,4,16,64,256] [--prompts 32,128,512,2048]: `gristmill-worker bench`.
"""

from __future__ import annotations

import sys

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill_worker.cli import app
from gristmill_worker.models.gguf import convert

if __name__ == "__main__":
    folder = find_model("smollm2-135m", settings=Settings(), convert_gguf=convert).path
    app(["bench", str(folder), *sys.argv[1:]])
