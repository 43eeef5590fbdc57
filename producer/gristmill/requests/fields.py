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
    if any("\ufffd" in str(string) for string in strings):
        # Bytes may still become a character while an answer grows: where it is cut, and why it
        # ended, would not be one and the same thing.
        raise invalid("must not contain U+FFFD, which stands for bytes that are no character")
    return tuple(strings)


def token_ids(value: object) -> tuple[int, ...]:
    """Sorted and each once, so that rows which mean the same are equal."""
    if value is None:
        return ()
    if type(value) is not list or any(type(item) is not int for item in value):
        raise invalid("must be a list of integers, the ids of tokens")
    return tuple(sorted(set(value)))


#: A text, or the ids of its tokens.
PromptInput = str | tuple[int, ...]

#: Prompts of one row.
MAX_PROMPTS = 2048


def one_prompt(value: object) -> PromptInput | None:
    """A text or token ids."""
    if value is None or type(value) is str:
        return value
    if type(value) is not list:
        raise invalid("must be a string or a list of token ids")
    if any(type(item) is not int for item in value):
        raise invalid("must hold integers only, the ids of tokens")
    return tuple(value)


def prompt_list(value: object) -> tuple[PromptInput, ...] | None:
    """Several texts or lists of token ids."""
    if value is None:
        return None
    if type(value) is not list or any(type(item) not in (str, list) for item in value):
        raise invalid("must be a list of strings or of lists of token ids")
    if not 0 < len(value) <= MAX_PROMPTS:
        raise invalid(f"must have 1 to {MAX_PROMPTS} entries, not {len(value)}")
    return tuple(one for one in map(one_prompt, value) if one is not None)


def prompts(value: object) -> tuple[PromptInput, ...]:
    """One prompt or several: a list that holds one means the same as it alone."""
    if type(value) is list and value and type(value[0]) in (str, list):
        return prompt_list(value) or ()
    one = one_prompt(value)
    if one is None:
        raise invalid("must be a string or a list of token ids")
    return (one,)


def token_limit(value: object) -> object:
    if value is not None and (type(value) is not int or (value < 1 and value != -1)):
        raise invalid("must be a number of tokens, or -1 for the most that the model reads")
    return value
