"""The Dockerfiles: pinned, not root, and what they copy, install and run exists."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from places import DOCKERFILES, INFRA, ROOT, instructions_of

DIGEST = re.compile(r"python:\d+\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
by_name = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)


def stages(path: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Instructions of the build, and those of the last stage."""
    found = instructions_of(path)
    last = max(idx for idx, (word, _) in enumerate(found) if word == "FROM")
    return found[:last], found[last:]


def test_there_is_one_for_the_service_and_one_for_workers() -> None:
    assert [path.name for path in DOCKERFILES] == ["service.Dockerfile", "worker.Dockerfile"]


@by_name
def test_every_stage_is_built_on_one_pinned_image(path: Path) -> None:
    found = instructions_of(path)
    (default,) = [
        rest for word, rest in found if word == "ARG" and rest.startswith("PYTHON_IMAGE=")
    ]

    assert DIGEST.fullmatch(default.removeprefix("PYTHON_IMAGE="))
    assert {rest.split()[0] for word, rest in found if word == "FROM"} == {"${PYTHON_IMAGE}"}
    assert len({instructions_of(other)[0] for other in DOCKERFILES}) == 1, "both on the same"


@by_name
def test_it_runs_as_a_user_of_its_own_behind_an_init(path: Path) -> None:
    _, last = stages(path)
    words = dict(last)

    assert words["USER"] == "10001:10001"
    assert json.loads(words["ENTRYPOINT"]) == ["tini", "--", "gristmill"], "hands SIGTERM on"
    assert " tini" in words["RUN"]
    assert words["STOPSIGNAL"] == "SIGTERM"
    order = [word for word, _ in last]
    assert order.index("USER") > max(
        idx for idx, word in enumerate(order) if word in ("RUN", "COPY")
    )


@by_name
def test_what_it_writes_to_is_what_may_be_mounted(path: Path) -> None:
    _, last = stages(path)
    (environ,) = [rest for word, rest in last if word == "ENV"]
    written = dict(pair.split("=", 1) for pair in environ.split())

    places = [value for name, value in written.items() if name.endswith(("_HOME", "_DIR", "HOME"))]
    assert len(places) >= 3
    assert all(place.startswith(("/tmp", "/var/cache/gristmill")) for place in places)
    assert written["GRISTMILL_CACHE_DIR"] == "/var/cache/gristmill"
    # A tmpfs over it belongs to root, and gets this mode instead of the one that was asked for.
    assert "install -d -m 1777 -o 10001 -g 10001 /var/cache/gristmill" in dict(last)["RUN"]


@by_name
def test_python_packages_come_from_the_pins(path: Path) -> None:
    runs = [rest for word, rest in instructions_of(path) if word == "RUN"]
    lines = [line for run in runs for line in re.findall(r"pip install [^&]*", run)]

    assert len(lines) >= 2
    for line in lines:
        assert "-c constraints.txt" in line
        for extras in re.findall(r"'\.\[([a-z,]+)\]'", line):
            assert set(extras.split(",")) <= set(PYPROJECT["project"]["optional-dependencies"])


def test_constraints_pin_everything_that_the_images_ask_for() -> None:
    def name_of(requirement: str) -> str:
        return re.split(r"[\[<>=;! ]", requirement)[0].lower().replace("_", "-")

    pins = {
        name_of(line)
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if "==" in line
    }
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"]]
    for extra in ("server", "worker", "redis", "aws"):
        asked += extras[extra]

    assert {name_of(one) for one in asked} - {"gristmill"} <= pins


@by_name
def test_what_is_copied_is_there_and_not_ignored(path: Path) -> None:
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    assert "*" in ignore
    for word, rest in instructions_of(path):
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                name = source.rstrip("/")
                assert any(fnmatch.fnmatch(name, one) for one in allowed), name


@by_name
def test_its_arguments_are_explained(path: Path) -> None:
    head = path.read_text("utf-8").split("\nARG ")[0]

    for word, rest in instructions_of(path):
        if word == "ARG":
            assert re.search(rf"^#   {rest.split('=')[0]} ", head, re.M), rest


@by_name
def test_the_health_check_asks_a_route_that_every_process_answers(path: Path) -> None:
    from health_routes import API_ROUTES, PROCESS_ROUTES

    _, last = stages(path)
    asked = re.search(r"http://127\.0\.0\.1:8000(/\w+)", dict(last)["HEALTHCHECK"])

    assert asked and asked[1] in API_ROUTES & PROCESS_ROUTES


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_tells_well_from_unwell(status: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/readyz"
    command = [sys.executable, "-S", str(INFRA / "docker/healthy.py"), url]
    try:
        done = subprocess.run(command, timeout=60, check=False, capture_output=True)
    finally:
        server.shutdown()
        server.server_close()
    nobody = subprocess.run(command, timeout=60, check=False, capture_output=True)

    assert done.returncode == (0 if status == 200 else 1)
    assert nobody.returncode == 1 and not nobody.stderr
