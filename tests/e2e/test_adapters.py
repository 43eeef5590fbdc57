"""LoRA adapters through the service and through workers: rows are those of the merged model."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from gristmill_process import Gristmill, read_lines
from installations import Installation, commands_in, completion, wait_for
from openai import OpenAI
from pipeline import fast_folder
from redis_server import shared_server

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from lora import merged, save_adapter

pytestmark = pytest.mark.slow
NAMES = ("tiny", "legal", "support")


def rows_for(model: str) -> list[dict[str, Any]]:
    return [
        completion(
            f"row-{i}", model=model, prompt=f"Say {i} {'and so on ' * i}", max_tokens=12, **more
        )
        for i, more in enumerate([{"temperature": 0}, {"seed": 5}, {"temperature": 0}, {"seed": 6}])
    ]


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of the adapters, and under `merged-NAME` of the models that they make."""
    from transformers import AutoModelForCausalLM

    place = tmp_path_factory.mktemp("adapters")
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    found = {"tiny": tiny_model}
    for seed, name in enumerate(NAMES[1:]):
        found[name] = save_adapter(place / name, base, ends=("q_proj", "up_proj"), seed=seed)
        whole = place / f"merged-{name}"
        shutil.copytree(tiny_model, whole)
        merged(base, found[name], 2.0).save_pretrained(whole)
        found[f"merged-{name}"] = whole
    return found


@pytest.fixture(scope="module")
def expected(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """The answers of the merged models, each by itself."""
    answers = {}
    for name in NAMES:
        model = folders.get(f"merged-{name}", folders["tiny"])
        gristmill = Gristmill(tmp_path_factory.mktemp(name), model)
        gristmill.write(rows_for("tiny"))
        done = gristmill.run()
        assert done.returncode == 0, done.stderr
        answers[name] = texts(read_lines(gristmill.output))
    assert len(set(map(str, answers.values()))) == len(NAMES)
    return answers


def texts(lines: list[dict[str, Any]]) -> list[str]:
    return [line["response"]["body"]["choices"][0]["text"] for line in lines]


def options_of(folders: dict[str, Path], *names: str) -> list[str]:
    return [word for name in names for word in ("--adapter", f"{name}={folders[name]}")]


def test_run_answers_with_the_adapter_that_the_lines_name(
    folders: dict[str, Path], expected: dict[str, list[str]], tmp_path: Path
) -> None:
    gristmill = Gristmill(tmp_path, folders["tiny"])
    options = options_of(folders, "legal", "support")
    gristmill.write(rows_for("support"))

    checked = gristmill.run("--dry-run", *options)
    done = gristmill.run(*options)

    assert (checked.returncode, done.returncode) == (0, 0), checked.stderr + done.stderr
    lines = read_lines(gristmill.output)
    # Draws are of the base's seed, so that those with a seed of their own are the same, too.
    assert texts(lines) == expected["support"]
    assert {line["response"]["body"]["model"] for line in lines} == {"support"}
    again = ("replay", "out.jsonl", "--input", "in.jsonl", "--model", str(folders["tiny"]))
    of_base = f"support@{folders['tiny']}={folders['support']}"
    replayed = gristmill.call(*again, "--id", "row-1", "--adapter", of_base)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    plain = gristmill.call(*again, "--id", "row-1")
    assert plain.returncode == 6 and "another model" in plain.stderr


def test_an_adapter_that_cannot_be_run_ends_the_command_with_the_reason(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders["legal"], broken)
    weights = broken / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    gristmill = Gristmill(tmp_path, folders["tiny"])
    gristmill.write(rows_for("broken"))

    done = gristmill.run("--adapter", f"broken={broken}")

    assert done.returncode == 1 and "cut or damaged" in done.stderr


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_folder() as folder:
        yield folder


def test_one_service_answers_with_its_base_and_with_each_adapter(
    folders: dict[str, Path], expected: dict[str, list[str]], place: Path
) -> None:
    with commands_in(place, None) as commands:
        data = place / "data"
        up = commands.start(
            *("up", "--model", str(folders["tiny"]), "--port", "0", "--data-dir", str(data)),
            *options_of(folders, "legal", "support"),
        )
        url, key = up.told(r"at (http://\S+/v1)$"), up.told(r"^(gm_\w+)$")
        client = OpenAI(base_url=url, api_key=key, max_retries=8)
        service = Installation(commands, client, "tiny", f"sqlite:///{data}/service.sqlite")

        batches = {name: service.create(rows_for(name)) for name in NAMES}
        strange = service.create(rows_for("strange"))

        for name, batch in batches.items():
            ended = service.wait(batch)
            lines = sorted(service.lines(ended.output_file_id), key=lambda one: one["custom_id"])
            assert texts(lines) == expected[name]
        assert service.wait(strange).status == "failed"
        assert {model.id for model in client.models.list()} == set(NAMES)
        workers = client.get("/workers", cast_to=object)
        (worker,) = workers["data"]  # type: ignore[index]
        assert [label.partition("@")[0] for label in worker["adapters"]] == ["legal", "support"]


def test_of_a_fleet_those_that_have_the_adapter_take_its_rows(
    folders: dict[str, Path], expected: dict[str, list[str]], place: Path
) -> None:
    queue = f"{shared_server('redis6').url}?prefix=t-{uuid4().hex[:8]}"
    store = str(place / "store")
    with commands_in(place, None) as commands:
        worker = ("worker", "--queue", queue, "--store", store, "--model", str(folders["tiny"]))
        plain = commands.start(*worker)
        adapted = commands.start(*worker, *options_of(folders, "legal"))
        for one in (plain, adapted):
            wait_for("a worker", lambda of=one: "worker ready" in of.err.read_text())
        source, output = place / "in.jsonl", place / "out.jsonl"
        source.write_text("".join(f"{json.dumps(row)}\n" for row in rows_for("legal")))

        run = commands.start(
            *("run", str(source), "-o", str(output), "--model", str(folders["tiny"])),
            *("--queue", queue, "--store", store, *options_of(folders, "legal")),
        )
        code = run.child.wait(300)
        run.is_over = True

        assert code == 0, run.err.read_text()
        assert texts(read_lines(output)) == expected["legal"]
        assert "attempt began" in adapted.err.read_text()
        assert "attempt began" not in plain.err.read_text()
