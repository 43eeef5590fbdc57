"""lm-evaluation-harness over Gristmill: `python -m gristmill.lm_eval run --model gristmill …`.

    python -m gristmill.lm_eval run --model gristmill --model_args model=smollm2-135m \\
        --tasks my_task --include_path tasks/

What the harness asks for becomes an input file, `gristmill run` answers it, and its scores are
those of the harness's own transformers backend. It needs the package lm-eval, and of Gristmill only
the command, which may be installed elsewhere (`command=/path/to/gristmill`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

#: The harness's own limit where a task names none.
_MAX_GENERATED_TOKENS = 256


@register_model("gristmill")
class GristmillLM(LM):  # type: ignore[misc]
    """`model` as `gristmill run --model` takes it; `options` are more of its options, in one text.

    A context that is too long loses its beginning, as the harness has it. A tokenizer that adds a
    begin-of-text token by itself: the harness scores that token too, as the first of a rolled text,
    behind another one; here it stands before the text, once.
    """

    def __init__(
        self, model: str, command: str = "gristmill", options: str = "", **_of_the_harness: object
    ) -> None:
        super().__init__()
        self._model = model
        self._command = [command, "run"]
        self._options = options.split()

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        rows = [
            {
                "type": "loglikelihood",
                "context": context,
                "continuation": continuation,
                "truncate_prompt_tokens": -1,
            }
            for context, continuation in _arguments(requests)
        ]
        answers = self._answers("/v1/score", rows)
        return [(_sum(answer), bool(answer["is_greedy"])) for answer in answers]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        rows = [{"type": "rolling", "text": text} for (text,) in _arguments(requests)]
        return [_sum(answer) for answer in self._answers("/v1/score", rows)]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        rows = []
        for context, options in _arguments(requests):
            until = options.get("until") or []
            row = {
                "prompt": context,
                "max_tokens": options.get("max_gen_toks", _MAX_GENERATED_TOKENS),
                "temperature": options.get("temperature", 0.0) if options.get("do_sample") else 0.0,
                "stop": [until] if isinstance(until, str) else list(until),
            }
            rows.append({name: value for name, value in row.items() if value != []})
        answers = self._answers("/v1/completions", rows)
        return [str(answer["choices"][0]["text"]) for answer in answers]

    def _answers(self, url: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answer to each body, in their order. Raises RuntimeError when a row has none."""
        if not bodies:
            return []
        with TemporaryDirectory(prefix="gristmill-lm-eval-") as scratch:
            source, answers = Path(scratch) / "in.jsonl", Path(scratch) / "out.jsonl"
            with source.open("w", encoding="utf-8") as lines:
                for i, body in enumerate(bodies):
                    request = {
                        "custom_id": str(i),
                        "method": "POST",
                        "url": url,
                        "body": {"model": self._model, **body},
                    }
                    lines.write(json.dumps(request) + "\n")
            where = [str(source), "-o", str(answers), "--model", self._model]
            subprocess.run([*self._command, *where, *self._options], check=False)
            found = {line["custom_id"]: line for line in _lines(answers)}
            found |= {line["custom_id"]: line for line in _lines(answers, errors=True)}
        return [_body(found.get(str(i)), bodies[i]) for i in range(len(bodies))]


def _arguments(requests: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [request.args for request in requests]


def _sum(answer: dict[str, Any]) -> float:
    total = answer["sum_logprob"]
    return float("-inf") if total is None else float(total)


def _lines(path: Path, *, errors: bool = False) -> list[dict[str, Any]]:
    path = path.with_suffix(".errors.jsonl") if errors else path
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _body(line: dict[str, Any] | None, asked: dict[str, Any]) -> dict[str, Any]:
    response = (line or {}).get("response")
    if response is None or response["status_code"] != 200:
        raise RuntimeError(
            f"gristmill run has no answer for {json.dumps(asked)[:200]}: {json.dumps(line)[:500]}"
        )
    body: dict[str, Any] = response["body"]
    return body


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
