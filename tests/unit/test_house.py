"""The house is in order: imports stay light, documents are true, files stay short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gristmill.cli import app
from gristmill.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HEAVY = ["torch", "transformers", "boto3", "celery", "sqlalchemy", "pyarrow", "fastapi"]
MAX_LINES = 330


def project_files(*suffixes: str) -> list[Path]:
    """What git knows or would add, by suffix (all when none is given)."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    paths = [ROOT / name for name in listed if not suffixes or name.endswith(suffixes)]
    return [path for path in paths if path.is_file()]


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after the statement."""
    program = f"import sys\n{statement}\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def commands() -> dict[str, set[str]]:
    """The commands of the command line, each with its options and those of its own commands."""
    import typer.main

    def options(command: Any) -> set[str]:
        own = {option for parameter in command.params for option in parameter.opts}
        return own.union(*map(options, getattr(command, "commands", {}).values()))

    return {name: options(found) for name, found in typer.main.get_command(app).commands.items()}


@pytest.mark.parametrize(
    "statement",
    [
        "import gristmill",
        "import gristmill.cli",
        "import gristmill.types, gristmill.errors, gristmill.wire, gristmill.settings",
    ],
)
def test_imports_of_the_light_side_stay_light(statement):
    assert not modules_after(statement) & set(HEAVY)


def test_importing_gristmill_pulls_in_no_third_party_package():
    others = modules_after("import gristmill") - modules_after("pass") - {"gristmill"}

    assert not {name for name in others if name not in sys.stdlib_module_names}


def test_help_needs_no_model_code():
    statement = (
        "from gristmill.cli import app\ntry: app(['run', '--help'])\nexcept SystemExit: pass"
    )

    assert not modules_after(statement) & {*HEAVY, "tokenizers", "pydantic_settings", "gguf"}


def test_the_readme_has_a_row_for_each_setting_with_its_default():
    rows = dict(re.findall(r"^\| `(GRISTMILL_[A-Z_]+)` \| ([^|]*?) \|", README, re.MULTILINE))

    assert rows == {
        "GRISTMILL_" + name.upper(): written_default(name) for name in Settings.model_fields
    }


def written_default(name: str) -> str:
    default = Settings.model_fields[name].default
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, Path):
        return "`" + str(default).replace(str(Path.home()), "~") + "`"
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_the_readme_shows_only_make_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    shown = set(re.findall(r"\bmake ([a-z-]+)\b", code_of(README)))

    assert {"run", "test", "lint"} <= shown <= targets


def test_the_readme_shows_only_commands_and_options_that_exist():
    known = commands()
    shown = re.findall(r"\bgristmill ([a-z]+)\b([^\n`]*)", code_of(README))

    assert shown
    for name, rest in shown:
        assert name in known
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) <= known[name]


def test_the_readme_documents_every_option():
    options = {option for names in commands().values() for option in names if option[:2] == "--"}

    assert [option for option in sorted(options - {"--help"}) if f"`{option}" not in README] == []


def code_of(text: str) -> str:
    """What a document shows as code: fenced blocks and inline spans, not prose."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return "\n".join(blocks + re.findall(r"`([^`\n]+)`", text))


def test_no_file_names_a_path_of_one_machine():
    # Written in pieces, so that this file does not find itself.
    pattern = re.compile(
        "|".join(("/wo" + "rk/", "/ho" + "me/", "/ro" + "ot/[a-z.]", "/Us" + "ers/"))
    )
    texts = project_files(".py", ".md", ".toml", ".txt", ".jsonl", ".yaml", "Makefile", "run")

    assert texts
    assert [
        str(path.relative_to(ROOT)) for path in texts if pattern.search(path.read_text("utf-8"))
    ] == []


def test_source_files_stay_short_and_say_what_they_are():
    for path in project_files(".py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        name = str(path.relative_to(ROOT))

        assert len(lines) <= MAX_LINES, f"{name} has {len(lines)} lines"
        if lines:
            assert lines[0].startswith(('"""', 'r"""')), f"{name} does not open with a sentence"
