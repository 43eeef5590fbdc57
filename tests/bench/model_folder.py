"""Prints the folder of the demo model, converting it when it must; other engines read it too."""

from __future__ import annotations

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill_worker.models.gguf import convert

if __name__ == "__main__":
    print(find_model("smollm2-135m", settings=Settings(), convert_gguf=convert).path)
