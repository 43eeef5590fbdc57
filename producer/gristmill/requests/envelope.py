"""The rules of one line around its body; whoever breaks them fails the batch, not the row.

A line is strict JSON (RFC 8259 plus: no key twice in an object) with exactly the four keys
custom_id, method, url and body. Unknown keys are refused, so that a misspelt one is not lost;
a caller's own data belongs into custom_id or body.metadata.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gristmill.errors import LineError
from gristmill.models import Model
from gristmill.requests.reader import Line, too_long
from gristmill.types import Endpoint

MAX_CUSTOM_ID_CHARS = 512

_KEYS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True)
class Request:
    """One line as the caller wrote it, its envelope checked, its body not yet."""

    line_no: int
    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that fails the batch. Its custom_id counts as used if it could be read."""

    error: LineError
    custom_id: str | None = None


class Envelopes:
    """Checks the lines of one file against each other: one endpoint, one model.

    With `endpoint` None the first line that names one this version has decides.
    """

    def __init__(self, *, model: Model, endpoint: Endpoint | None, max_line_bytes: int) -> None:
        self.endpoint = endpoint
        self._model = model
        self._model_seen: str | None = None
        self._max_line_bytes = max_line_bytes

    def read(self, line: Line) -> Request | BadLine:
        """The request of a line that is not blank."""
        if line.content is None:
            return BadLine(too_long(line, max_line_bytes=self._max_line_bytes))
        try:
            request = parse_json(line.content)
        except ValueError as error:
            return BadLine(
                LineError("invalid_json_line", f"The line is not valid JSON: {error}", line.number)
            )
        if type(request) is not dict:
            return _bad(
                line, "invalid_request", None, f"A line is a JSON object, not {_show(request)}."
            )
        custom_id = request.get("custom_id")
        if not (type(custom_id) is str and 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS):
            return self._bad_custom_id(line, request)
        problem = self._check(line, request)
        if problem is not None:
            return BadLine(problem, custom_id)
        return Request(line.number, custom_id, request["body"])

    def accept(self, url: str) -> None:
        """Takes over what a line says that was checked in an earlier pass over the file."""
        self.endpoint = self.endpoint or Endpoint(url)
        self._model_seen = self._model.name

    def _check(self, line: Line, request: dict[str, Any]) -> LineError | None:
        """The first rule that the line breaks."""
        if len(request) != len(_KEYS) or any(key not in request for key in _KEYS):
            return self._wrong_keys(line, request)
        if request["method"] != "POST":
            return _error(
                line,
                "invalid_request",
                "method",
                f'`method` must be "POST", not {_show(request["method"])}.',
            )
        if not self._is_endpoint(request["url"]):
            return self._wrong_url(line, request["url"])
        if type(request["body"]) is not dict:
            return _error(
                line,
                "invalid_request",
                "body",
                f"`body` must be an object, not {_show(request['body'])}.",
            )
        name = request["body"].get("model")
        # A model that is missing or no string concerns this row alone: bodies.py refuses it.
        if type(name) is str:
            if not self._model.serves(name):
                return self._wrong_model(line, name)
            self._model_seen = name
        return None

    def _is_endpoint(self, url: object) -> bool:
        if self.endpoint is None and type(url) is str and url in list(Endpoint):
            self.endpoint = Endpoint(url)
        return self.endpoint is not None and url == self.endpoint

    def _bad_custom_id(self, line: Line, request: dict[str, Any]) -> BadLine:
        if "custom_id" not in request:
            return BadLine(self._wrong_keys(line, request))
        custom_id = request["custom_id"]
        if type(custom_id) is str and custom_id:
            seen = f"this one has {len(custom_id)} characters"
        else:
            seen = f"not {_show(custom_id)}"
        return _bad(
            line,
            "invalid_request",
            "custom_id",
            f"`custom_id` must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters, {seen}.",
        )

    def _wrong_keys(self, line: Line, request: dict[str, Any]) -> LineError:
        for key in _KEYS:
            if key not in request:
                return _error(line, "invalid_request", key, f"The line lacks `{key}`.")
        key = next(key for key in request if key not in _KEYS)
        return _error(
            line,
            "invalid_request",
            key,
            f"Unknown key {_show(key)} beside custom_id, method, url and body. Parameters belong "
            "into `body`, your own data into `custom_id` or `body.metadata`.",
        )

    def _wrong_url(self, line: Line, url: object) -> LineError:
        wanted = f'"{self.endpoint}"' if self.endpoint else " or ".join(f'"{e}"' for e in Endpoint)
        return _error(
            line,
            "url_mismatch",
            "url",
            f"`url` must be {wanted} like in the rest of the batch, not {_show(url)}. "
            "Put requests for another endpoint into a file of their own.",
        )

    def _wrong_model(self, line: Line, name: str) -> LineError:
        served = " or ".join(f'"{name}"' for name in self._model.served_names)
        if self._model_seen is not None:
            return _error(
                line,
                "model_mismatch",
                "body.model",
                f'A file has one model: earlier lines ask for "{self._model_seen}", this one for '
                f"{_show(name)}. Put it into a file of its own.",
            )
        return _error(
            line,
            "model_not_found",
            "body.model",
            f"There is no model {_show(name)} here; this batch runs {served}. Write that name, or "
            "serve the model under this one.",
        )


def parse_json(content: bytes) -> Any:
    """Strict JSON with integers intact. Raises ValueError with what is wrong and where.

    The standard decoder is the right one here: detecting repeated keys with it costs nothing,
    while a faster decoder that lets them pass needs a second look at each line.
    """
    try:
        text = content.decode()
        value = _DECODER.decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos + 1}.") from error
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise ValueError(f"byte {byte:#04x} at position {error.start} is not UTF-8.") from error
    except UnicodeEncodeError as error:
        raise ValueError(
            f"\\u{ord(error.object[error.start]):04x} is half of a surrogate pair, not a character."
        ) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply.") from error
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's guard against quadratic time
            raise ValueError("an integer has more than 4300 digits.") from error
        raise
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {_show(twice)} occurs twice in one object.")
    return fields


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {_show(text)} is too large.")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number.")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant
)
#: An escape that may be half a pair; rare enough to look at the decoded strings then.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _error(line: Line, code: str, param: str | None, message: str) -> LineError:
    return LineError(code, message, line.number, param)


def _bad(line: Line, code: str, param: str | None, message: str) -> BadLine:
    return BadLine(_error(line, code, param, message))


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
