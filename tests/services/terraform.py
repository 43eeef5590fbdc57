"""Runs Terraform on a copy of infra/terraform, with the AWS provider that lies on this machine.

Nothing is downloaded: TF_PLUGIN_DIR names a folder laid out as Terraform lays out its mirrors
(registry.terraform.io/hashicorp/aws/…), else the usual places are looked at.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "infra" / "terraform"
_AWS = Path("registry.terraform.io/hashicorp/aws")
#: Reading the schemas of the provider alone takes seconds, minutes on a busy machine.
_PATIENCE_S = 900.0


def terraform_command() -> str:
    """Skips the test where there is no Terraform."""
    command = shutil.which("terraform")
    if command is None:
        pytest.skip("needs terraform (https://developer.hashicorp.com/terraform/install)")
    return command


def plugin_dir() -> Path:
    """Where the AWS provider lies; skips the test where it is not found."""
    given = os.environ.get("TF_PLUGIN_DIR")
    places = [Path(given)] if given else _usual_places()
    for place in places:
        if any((place / _AWS).glob("*/*_*/terraform-provider-aws*")):
            return place
    pytest.skip(
        "needs Terraform's AWS provider on disk: set TF_PLUGIN_DIR to a folder that holds "
        f"{_AWS}/VERSION/OS_ARCH, such as `terraform providers mirror` makes"
    )


def _usual_places() -> list[Path]:
    share = os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share").split(":")
    places = [Path(folder) / "terraform" / "plugins" for folder in share]
    places.append(Path.home() / ".terraform.d" / "plugins")
    places += sorted(Path("/opt").glob("*"))
    return places


@dataclass
class Terraform:
    """A folder with a copy of the modules in `terraform`, and a root of one's own in `root`."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shutil.copytree(
            SOURCE,
            self.folder / "terraform",
            ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"),
        )
        self.root = self.folder / "root"

    def init(self, root: Path) -> None:
        """Makes `root` what the other calls are about."""
        self.root = root
        self.call("init", "-backend=false", f"-plugin-dir={plugin_dir()}", "-input=false")

    def call(self, *words: str) -> str:
        """What it says; it has to end well."""
        done = subprocess.run(
            [terraform_command(), f"-chdir={self.root}", *words, "-no-color"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
            env=self._environ(),
        )
        assert done.returncode == 0, f"terraform {words[0]}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def outputs(self) -> dict[str, Any]:
        found = json.loads(self.call("output", "-json"))
        return {name: output["value"] for name, output in found.items()}

    def _environ(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
        return {**inherited, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", **self.environ}
