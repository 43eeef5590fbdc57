"""Chat messages and prompt texts to token ids, many at a time. Knows nothing of rows and limits.

One BOS at most: a chat template writes it itself if the model wants one, a raw prompt gets what
the tokenizer adds, and not twice. In a raw prompt control tokens are parsed; in chat messages they
are text (control_tokens.py). A conversation gets a new turn of the assistant, also when it ends
with one, unless its options say otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from gristmill.errors import ModelUnsupported, RowRefused, UsageError
from gristmill.models import Model
from gristmill.quick_imports import import_quickly
from gristmill.requests.chat_template import ChatOptions
from gristmill.requests.grammars import GrammarCheck
from gristmill.requests.rendering import ChatRenderer
from gristmill.types import ToolFormat

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from gristmill.requests.messages import Message

#: Characters handed to the Rust side at once: enough for all cores, and its results, about a
#: hundred bytes for each token, stay near the processor.
MAX_CHARS_AT_ONCE = 1 << 18
_NEW_TURN = ChatOptions()


class Reading(Enum):
    """How a text is to be read."""

    CHAT = auto()  # a rendered chat; its control tokens are the template's
    SEALED = auto()  # a rendered chat in which users spelled control tokens out
    RAW = auto()  # a prompt as the caller wrote it; the tokenizer adds its BOS
    OPEN = auto()  # as RAW, but the tokenizer adds nothing at the end
    BARE = auto()  # as RAW, but the tokenizer adds nothing


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is ready to be encoded."""

    text: str
    reading: Reading


class Tokeniser:
    """The tokenizer of one model. Its settings never change, so threads may share it."""

    def __init__(self, model: Model) -> None:
        try:
            import jinja2  # noqa: F401

            import_quickly("transformers.models.auto.tokenization_auto")
            from transformers import AutoTokenizer

            from gristmill.requests.control_tokens import ControlTokens
        except ImportError as error:
            raise UsageError(
                f"Tokenising needs the package {error.name}: pip install 'gristmill[server]'"
            ) from error
        try:
            loaded = AutoTokenizer.from_pretrained(
                model.path, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # tokenizers raises nothing narrower for a file it cannot read
            raise ModelUnsupported(
                f"The tokenizer in {model.path} does not load: {error}"
            ) from error
        if not getattr(loaded, "is_fast", False):
            raise ModelUnsupported(f"The tokenizer in {model.path} has no fast (Rust) version.")
        self._renderer = ChatRenderer(loaded)
        # A copy of our own: transformers changes its padding and truncation from call to call.
        self._tokenizer: Tokenizer = type(loaded.backend_tokenizer).from_str(
            loaded.backend_tokenizer.to_str()
        )
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        #: The largest id that a text can have; models with a smaller vocabulary exist.
        self.max_token_id = max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        mask = self._tokenizer.encode("a").special_tokens_mask
        self._vocab_size = model.vocab_size
        #: How many tokens of its own the tokenizer puts behind a raw text.
        self.num_closing_tokens = next((i for i, own in enumerate(reversed(mask)) if not own), 0)
        self._control = ControlTokens(self._tokenizer)
        self._added = self._tokenizer.get_added_tokens_decoder()
        #: The verdicts on grammars for this model.
        self.grammars = GrammarCheck(
            self._tokenizer.to_str, max(model.vocab_size, self.max_token_id + 1)
        )
        self._sealed: Tokenizer | None = None
        self._sealed_lock = threading.Lock()
        self._bos: tuple[str, int] | None = None
        if isinstance(loaded.bos_token, str) and isinstance(loaded.bos_token_id, int):
            self._bos = (loaded.bos_token, loaded.bos_token_id)
        #: What stands before the first token where nothing does: BOS, or EOS in its place.
        self.prefix_id: int | None = (
            loaded.eos_token_id if loaded.bos_token_id is None else loaded.bos_token_id
        )

    @property
    def tool_format(self) -> ToolFormat | None:
        """How the model writes calls of tools; None where its chat template takes none."""
        return self._renderer.tool_format

    def added_token_id(self, text: str) -> int | None:
        """The id of the added token that is written so, if there is one."""
        found = [token_id for token_id, token in self._added.items() if token.content == text]
        return found[0] if found else None

    def is_special(self, text: str) -> bool:
        """Whether it is a control token, which has no text in an answer."""
        return any(token.content == text and token.special for token in self._added.values())

    def chat(self, messages: Sequence[Message], options: ChatOptions = _NEW_TURN) -> Text:
        """Renders a conversation. Raises RowRefused when the template objects to it.

        The role `developer` is `system` under a newer name; templates know the older one.
        """
        if options != _NEW_TURN:
            self._check(options)
        if self.tool_format is None and any(_is_of_tools(message) for message in messages):
            raise RowRefused(
                "The chat template of this model knows no tools, so it would leave out what these "
                "messages say of them. Write it as text, or use a model whose template does.",
                param="messages",
                code="unsupported_parameter",
            )
        try:
            guards = self._spells([messages, options.template_kwargs, options.tools])
            said, written = self._guarded_all(messages, options) if guards else (messages, options)
            conversation: list[Any] = [
                {**message, "role": "system"} if message["role"] == "developer" else message
                for message in said
            ]
            rendered = self._renderer.render(conversation, written)
        except self._renderer.errors as error:
            raise RowRefused(
                f"The model's chat template objects to these messages: {str(error)[:300]}",
                param="messages",
            ) from error
        if guards:
            return Text(self._control.seal(rendered), Reading.SEALED)
        return Text(rendered, Reading.CHAT)

    def _check(self, options: ChatOptions) -> None:
        try:
            names = self._renderer.variables
        except self._renderer.errors as error:
            raise RowRefused(
                f"The model's chat template cannot be read: {error}", param="messages"
            ) from error
        options.check(names)

    def _spells(self, value: Any) -> bool:
        """Whether the tokenizer might read a control token in a string of a JSON value."""
        if isinstance(value, str):
            return self._control.spelled_in(value)
        if isinstance(value, list | tuple):
            return any(map(self._spells, value))
        if isinstance(value, Mapping):
            return any(map(self._spells, value)) or any(map(self._spells, value.values()))
        return False

    def _guarded_all(
        self, messages: Sequence[Message], options: ChatOptions
    ) -> tuple[Sequence[Message], ChatOptions]:
        template_kwargs, tools = map(self._guarded, (options.template_kwargs, options.tools))
        guarded = replace(options, template_kwargs=template_kwargs, tools=tools)
        return self._guarded(messages), guarded

    def _guarded(self, value: Any) -> Any:
        """A JSON value whose strings spell no control token."""
        if isinstance(value, str):
            return self._control.guard(value)
        if isinstance(value, Mapping):
            return {self._guarded(key): self._guarded(item) for key, item in value.items()}
        return [self._guarded(item) for item in value] if isinstance(value, list | tuple) else value

    def check_known(self, ids: Sequence[int], *, param: str) -> None:
        """Raises RowRefused for a token that the tokenizer has and the model does not."""
        if self.max_token_id >= self._vocab_size and max(ids) >= self._vocab_size:
            raise RowRefused(
                f"`{param}` has a token with id {max(ids)}, which the tokenizer knows and the "
                f"model does not: its ids end at {self._vocab_size - 1}. Leave that token out.",
                param=param,
                code="invalid_value",
            )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; control tokens have none."""
        return self._tokenizer.decode(ids)

    def encode(self, texts: Sequence[Text]) -> list[list[int]]:
        """Token ids of each text, computed on all cores without holding the interpreter.

        Takes memory for all texts at once; many are handed over as `in_groups` has them.
        """
        ids: list[list[int]] = [[] for _ in texts]
        for reading in Reading:
            chosen = [idx for idx, text in enumerate(texts) if text.reading is reading]
            if chosen:
                encoded = self._encode([texts[idx].text for idx in chosen], reading)
                for idx, text_ids in zip(chosen, encoded, strict=True):
                    ids[idx] = text_ids
        return ids

    def _encode(self, texts: list[str], reading: Reading) -> list[list[int]]:
        tokenizer = self._sealed_tokenizer() if reading is Reading.SEALED else self._tokenizer
        adds = reading in (Reading.RAW, Reading.OPEN)
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=adds)
        ids = [encoding.ids for encoding in encodings]
        if reading is Reading.OPEN and self.num_closing_tokens:
            ids = [text_ids[: -self.num_closing_tokens] for text_ids in ids]
        if adds and self._bos is not None:
            bos, bos_id = self._bos
            for text, text_ids in zip(texts, ids, strict=True):
                if text.startswith(bos) and text_ids[:2] == [bos_id, bos_id]:
                    del text_ids[0]
        return ids

    def _sealed_tokenizer(self) -> Tokenizer:
        with self._sealed_lock:
            if self._sealed is None:
                self._sealed = self._control.sealed_tokenizer()
            return self._sealed


def _is_of_tools(message: Message) -> bool:
    return message["role"] == "tool" or "tool_calls" in message


def in_groups(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """`texts` in their order, as many together as are best encoded at once."""
    group: list[Text] = []
    num_chars = 0
    for text in texts:
        group.append(text)
        num_chars += len(text.text)
        if num_chars >= MAX_CHARS_AT_ONCE:
            yield group
            group, num_chars = [], 0
    if group:
        yield group
