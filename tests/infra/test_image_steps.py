"""What the service's image is built by, step by step as its Dockerfile says, but in a folder.

There is no container engine where tests run: the base image, users and apt are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import INFRA, ROOT, instructions_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DOCKERFILE = INFRA / "docker/service.Dockerfile"


def build(folder: Path) -> None:
    """The first stage, with `/src` and `/opt/gristmill` in the folder."""
    source, venv = folder / "src", folder / "gristmill"
    source.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    here = {"/opt/gristmill": str(venv), "/src": str(source)}
    for word, rest in instructions_of(DOCKERFILE):
        for there, place in here.items():
            rest = rest.replace(there, place)
        if word == "ENV":
            for name, value in re.findall(r"(\w+)=(\S+)", rest):
                if name not in ("PIP_INDEX_URL", "PIP_NO_CACHE_DIR"):  # this machine's, and quicker
                    environ[name] = value.replace("${PATH}", environ["PATH"])
        elif word == "COPY" and "--from" not in rest:
            *names, target = rest.split()
            for name in names:
                if (ROOT / name).is_dir():
                    shutil.copytree(
                        ROOT / name,
                        source / target,
                        ignore=shutil.ignore_patterns("__pycache__"),
                        dirs_exist_ok=True,
                    )
                else:
                    shutil.copy(ROOT / name, source / target)
        elif word == "RUN":
            steps = rest.replace("python -m venv", f"{sys.executable} -m venv")
            subprocess.run(["sh", "-ec", steps], cwd=source, env=environ, check=True, timeout=1200)
        elif word == "FROM" and " AS " not in rest:
            return


@pytest.fixture(scope="module")
def gristmill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("image")
    build(folder)
    shutil.rmtree(folder / "src")  # as the last stage has it not
    yield folder / "gristmill/bin/gristmill"
    shutil.rmtree(folder)


def run(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": os.environ["PATH"], **environ},
    )


def test_the_service_runs_without_torch_from_its_own_packages(
    gristmill: Path, tmp_path: Path
) -> None:
    python = gristmill.with_name("python")
    torch = run(python, "-c", "import importlib.util as u; print(u.find_spec('torch'))")
    checked = run(python, "-m", "pip", "check")
    ledger = f"sqlite:///{tmp_path}/ledger.sqlite"
    migrated = run(gristmill, "ledger", "migrate", "--ledger", ledger)
    made = run(
        gristmill,
        *("keys", "create", "--name", "first"),
        GRISTMILL_LEDGER=ledger,
        GRISTMILL_KEY_PEPPER="a pepper of the tests",
    )
    helps = [run(gristmill, command, "--help") for command in ("api", "control")]

    assert torch.stdout.strip() == "None"
    assert checked.returncode == 0, checked.stdout
    assert migrated.returncode == 0, migrated.stderr
    assert made.stdout.startswith("gm_"), made.stderr
    assert [done.returncode for done in helps] == [0, 0]


def test_its_api_and_control_start_and_end(gristmill: Path, tmp_path: Path) -> None:
    """Without a server: on a file, a folder, and a queue that is not there."""
    environ = {
        "GRISTMILL_LEDGER": f"sqlite:///{tmp_path}/ledger.sqlite",
        "GRISTMILL_STORE": str(tmp_path / "store"),
        "GRISTMILL_KEY_PEPPER": "a pepper of the tests",
        "GRISTMILL_QUEUE": "redis://127.0.0.1:1/0",
    }
    process = subprocess.Popen(
        [gristmill, "api", "--port", "0"],
        env={"PATH": os.environ["PATH"], **environ},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said += line
            if "api ready" in line:
                break
        process.terminate()
        code = process.wait(60)
    finally:
        process.kill()
    control = run(gristmill, "control", **environ)

    assert "api ready" in said and code == 0
    assert control.returncode == 1 and "cannot be reached" in control.stderr
