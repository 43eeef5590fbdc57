"""What `gristmill up` says first: where it is, the first key, and an example to paste."""

from __future__ import annotations

import json

from gristmill.models import Model
from gristmill.types import Endpoint, JobKind

_EXAMPLE = """\
export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}
python - <<'END'
import json, time
from openai import OpenAI

client = OpenAI()
request = json.loads('''{request}''')
file = client.files.create(file=("requests.jsonl", json.dumps(request).encode()), purpose="batch")
batch = client.batches.create(
    input_file_id=file.id, endpoint=request["url"], completion_window="24h"
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
print(client.files.content(batch.output_file_id or batch.error_file_id).text)
END"""


def welcome(url: str, model: Model, key: str | None) -> str:
    """With a key that was just made, also how to use it."""
    head = f"Gristmill serves {model.name} at {url}/v1\nThe dashboard is at {url}/dashboard"
    if key is None:
        return f"{head}\nYour API keys are those of before; `gristmill keys` makes more."
    return (
        f"{head}\n\nYour API key, which is shown only now:\n\n{key}\n\n"
        f"Try it (pip install openai):\n\n{example(url, model, key)}\n"
    )


def example(url: str, model: Model, key: str) -> str:
    """Lines for a shell that run a batch of one request."""
    request = {"custom_id": "q1", "method": "POST", **_request(model)}
    return _EXAMPLE.format(url=url, key=key, request=json.dumps(request))


def _request(model: Model) -> dict[str, object]:
    question = "What is the capital of France?"
    named = {"model": model.name}
    if JobKind.GENERATE not in model.kinds:
        return {"url": Endpoint.EMBEDDINGS, "body": {**named, "input": question}}
    limits = {"max_tokens": 24, "temperature": 0}
    if model.has_chat_template:
        messages = [{"role": "user", "content": question}]
        return {"url": Endpoint.CHAT, "body": {**named, "messages": messages, **limits}}
    return {"url": Endpoint.COMPLETIONS, "body": {**named, "prompt": question, **limits}}
