"""What no line of the packages may do: read what can run code, or run a model's own code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

#: Each of them runs code that somebody else wrote, or can be made to.
FORBIDDEN = {
    *("eval", "exec", "__import__", "os.system", "os.popen", "marshal.load", "marshal.loads"),
    *("torch.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load", "dill.load", "joblib.load"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "shelve.open", "numpy.load", "np.load"),
}
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """All calls and imports of both packages, with where they stand."""
    paths = [path for name in ("producer", "worker") for path in (ROOT / name).rglob("*.py")]
    assert len(paths) > 100
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.Import | ast.ImportFrom)
    ]


@cache
def calls() -> list[tuple[str, str, dict[str, ast.expr]]]:
    """Where, what is called (as a dotted name; else empty), and its keywords."""
    return [
        (where, dotted(node.func), {word.arg or "**": word.value for word in node.keywords})
        for where, node in nodes()
        if isinstance(node, ast.Call)
    ]


def dotted(name: ast.expr) -> str:
    if isinstance(name, ast.Attribute):
        return f"{dotted(name.value)}.{name.attr}"
    return name.id if isinstance(name, ast.Name) else ""


def test_nothing_is_read_that_can_run_code() -> None:
    imported = [
        (where, alias.name)
        for where, node in nodes()
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in [*node.names, ast.alias(getattr(node, "module", None) or "")]
        if alias.name.partition(".")[0] in FORBIDDEN_MODULES
    ]

    assert [(where, name) for where, name, _ in calls() if name in FORBIDDEN] == []
    assert imported == []


def test_no_shell_is_asked_to_run_a_text() -> None:
    assert [where for where, _, keywords in calls() if "shell" in keywords] == []


def test_a_model_never_brings_code_of_its_own() -> None:
    loads = [
        (where, name, keywords)
        for where, name, keywords in calls()
        if name.endswith((".from_pretrained", ".from_config"))
        and name != "GenerationConfig.from_pretrained"  # numbers only
    ]

    assert loads
    for where, name, keywords in loads:
        trusts = keywords.get("trust_remote_code")
        assert isinstance(trusts, ast.Constant) and trusts.value is False, (where, name)


def test_each_line_of_the_checklist_has_a_test_that_exists_or_a_reason() -> None:
    table = (TESTS / "security.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+) \|$", table, re.MULTILINE)[1:]
    source = "\n".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    existing = set(re.findall(r"def (test_\w+)", source))

    named = [set(re.findall(r"`(test_\w+)`", row)) for _, row in rows]
    assert len(rows) == 22 and set.union(*named) - existing == set()
    without = [row for (_, row), tests in zip(rows, named, strict=True) if not tests]
    assert len(without) == 1 and without[0].startswith("no test here:")
