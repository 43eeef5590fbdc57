"""Fields of a body that are more than one number or string: stop, prompt, token ids."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

MAX_STOP_STRINGS = 4


def unsupported(text: str, *, field: str = "") -> PydanticCustomError:
    return PydanticCustomError("unsupported_parameter", "{text}", {"text": text, "field": field})


def invalid(text: str, *, field: str = "") -> PydanticCustomError:
    return PydanticCustomError("invalid_value", "{text}", {"text": text, "field": field})


def stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = value if type(value) is list else [value]
    if any(type(string) is not str for string in strings):
        raise invalid("must be a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid(f"must have at most {MAX_STOP_STRINGS} strings, not {len(strings)}")
    if "" in strings:
        raise invalid("must not contain an empty string, which would stop every answer at once")
    return tuple(strings)


def token_ids(value: object) -> tuple[int, ...]:
    """Sorted and each once, so that rows which mean the same are equal."""
    if value is None:
        return ()
    if type(value) is not list or any(type(item) is not int for item in value):
        raise invalid("must be a list of integers, the ids of tokens")
    return tuple(sorted(set(value)))


def prompt(value: object) -> str | tuple[int, ...]:
    """A text or token ids; a list that holds one of these means the same as it alone."""
    if type(value) is list and len(value) == 1 and type(value[0]) in (str, list):
        value = value[0]
    if type(value) is str:
        return value
    if type(value) is not list:
        raise invalid("must be a string or a list of token ids")
    if any(type(item) in (str, list) for item in value):
        raise unsupported("has several prompts, which is not supported yet; write a line for each")
    if any(type(item) is not int for item in value):
        raise invalid("must hold integers only, the ids of tokens")
    return tuple(value)
