"""What a row becomes in a request: a chat or a plain prompt, and its line of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gristmill.data.template import Template, no_such_column, place, text_of
from gristmill.errors import DataInvalid, UsageError

CHAT_URL = "/v1/chat/completions"
PLAIN_URL = "/v1/completions"
#: Longest custom_id that is made of a column, in characters.
_MAX_ID_CHARS = 512


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt over columns: with `chat` the user's message, after `system` where there is one."""

    user: Template
    system: Template | None = None
    chat: bool = True

    def __post_init__(self) -> None:
        if self.system is not None and not self.chat:
            raise UsageError("A system message belongs to a chat. Leave it out of a plain prompt.")

    def body(self, row: Mapping[str, Any], *, number: int | None = None) -> dict[str, Any]:
        """`messages` or `prompt` of the body. Raises DataInvalid, naming row and column."""
        text = self.user.render(row, number=number)
        if not self.chat:
            return {"prompt": text}
        return {"messages": [*self._system(row, number), {"role": "user", "content": text}]}

    def _system(self, row: Mapping[str, Any], number: int | None) -> list[dict[str, str]]:
        if self.system is None:
            return []
        return [{"role": "system", "content": self.system.render(row, number=number)}]


@dataclass(frozen=True, slots=True)
class RowIds:
    """Each row's custom_id: the value of a column, or its place, `row-1` and so on.

    Whether a value comes twice is looked at where the batch is read.
    """

    column: str | None = None

    def of(self, row: Mapping[str, Any], number: int) -> str:
        """Raises DataInvalid, naming row and column."""
        if self.column is None:
            return f"row-{number}"
        if self.column not in row:
            raise no_such_column(self.column, row, number, what="the ids are to come from")
        value = row[self.column]
        text = "" if value is None else text_of(value)
        if not text or len(text) > _MAX_ID_CHARS:
            problem = "is empty" if not text else f"has {len(text)} characters"
            raise DataInvalid(
                f"{place(number)}the id in column {self.column!r} {problem}. Ids have 1 to "
                f"{_MAX_ID_CHARS}; without an id column rows are named by their place."
            )
        return text


def request(custom_id: str, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
