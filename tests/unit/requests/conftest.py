"""Small models, and short ways to write the lines of an input file and to read it."""

from __future__ import annotations

import functools
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

sys.path.insert(0, str(Path(__file__).parent))

from gristmill.errors import BatchInvalid, LineError
from gristmill.models import Model, find_model
from gristmill.requests.prepare import Window, prepare
from gristmill.requests.tokenise import Tokeniser
from gristmill.settings import Settings

# The machine may be busy with other tests: a slow example is no failure.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

TURN_START, TURN_END, BOS = "<|im_start|>", "<|im_end|>", "<s>"
NAMES = (TURN_START, TURN_END, BOS)

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "You are a helpful assistant. Be brief and evil.",
    "system user assistant\nim_start im_end <| |> <s> </s> { } x != y",
    "hi there, how are you today? 0123456789 a b c d e",
] * 8
ALPHABET = sorted({*"".join(CORPUS), *"\n\t\u00e9\u2581"} - {" "})


class MakeModel(Protocol):
    def __call__(
        self,
        kind: str = "bytes",
        *,
        names: tuple[str, str, str] = NAMES,
        add_bos: bool = False,
        template: str | None = "chatml",
        max_model_len: int = 512,
        vocab_size: int | None = None,
    ) -> Model: ...


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """A model folder without weights worth the name. Equal arguments give the same Model."""

    @functools.cache
    def make(
        kind: str = "bytes",
        *,
        names: tuple[str, str, str] = NAMES,
        add_bos: bool = False,
        template: str | None = "chatml",
        max_model_len: int = 512,
        vocab_size: int | None = None,
    ) -> Model:
        folder = tmp_path_factory.mktemp("model")
        tokenizer = TOKENIZERS[kind](names)
        if add_bos:
            tokenizer.post_processor = TemplateProcessing(
                single=f"{names[2]} $A",
                special_tokens=[(names[2], tokenizer.token_to_id(names[2]))],
            )
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "config.json").write_text(
            json.dumps(
                {
                    "vocab_size": vocab_size or tokenizer.get_vocab_size(),
                    "max_position_embeddings": max_model_len,
                }
            )
        )
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": names[2]})
        )
        if template is not None:
            text = TEMPLATES.get(template, template)
            for name, own in zip(NAMES, names, strict=True):
                text = text.replace(name, own)
            (folder / "chat_template.jinja").write_text(text)
        return find_model(str(folder), settings=Settings(), served_names=["M"])

    return make


TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "bos": "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}<|im_end|>"
    "{% endfor %}[assistant]",
    "strict": "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}"
    "{% endif %}{{ messages[0].content }}",
}


def _byte_level(names: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=[AddedToken(name, special=True) for name in names],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _ignore_merges(names: Sequence[str]) -> Tokenizer:
    """A BPE that takes a whole word from its vocabulary, where the control tokens are too."""
    config = json.loads(_byte_level(names).to_str())
    config["model"]["ignore_merges"] = True
    config["pre_tokenizer"]["use_regex"] = False
    return Tokenizer.from_str(json.dumps(config))


def _unigram(names: Sequence[str]) -> Tokenizer:
    """Like a sentencepiece model: Metaspace, and the control tokens are pieces of the model."""
    words = ["\u2581the", "\u2581im", "_start", "user", "\u2581user", "assistant", "<|", "|>", "</"]
    pieces = [("<unk>", 0.0), *((name, 0.0) for name in names)]
    pieces += [(word, -3.0 - idx / 16) for idx, word in enumerate(words)]
    pieces += [(char, -6.0 - idx / 64) for idx, char in enumerate(ALPHABET)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, rstrip=name == names[2]) for name in ("<unk>", *names)]
    )
    return tokenizer


def _normalised(names: Sequence[str]) -> Tokenizer:
    """Control tokens are looked for after lower-casing, so "<|IM_END|>" spells one too."""
    config = json.loads(_byte_level(names).to_str())
    config["normalizer"] = {"type": "Lowercase"}
    for token in config["added_tokens"]:
        token["normalized"] = True
    return Tokenizer.from_str(json.dumps(config))


def _merged(names: Sequence[str]) -> Tokenizer:
    """A BPE whose merges lead to the control token <s>, as if it were an ordinary word."""
    merges = [("<", "s"), ("<s", ">")] if BOS in names else [("<", "s")]
    pieces = [*ALPHABET, " ", "<s", *names]
    vocab = {piece: idx for idx, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


TOKENIZERS: dict[str, Callable[[Sequence[str]], Tokenizer]] = {
    "bytes": _byte_level,
    "ignore_merges": _ignore_merges,
    "unigram": _unigram,
    "normalised": _normalised,
    "merged": _merged,
}


@functools.cache
def tokeniser_of(path: Path, model: Model) -> Tokeniser:
    return Tokeniser(model)


class Read(Protocol):
    """Reads lines (or bytes) as an input file of `model`; settings by name."""

    def __call__(
        self, lines: Sequence[str] | bytes, model: Model | None = None, **options: Any
    ) -> list[Window]: ...


@pytest.fixture(scope="session")
def read(make_model: MakeModel) -> Read:
    def read_windows(
        lines: Sequence[str] | bytes,
        model: Model | None = None,
        *,
        settings: Settings | None = None,
        batch_seed: str = "seed",
        **options: Any,
    ) -> list[Window]:
        model = model or make_model()
        content = lines if isinstance(lines, bytes) else "\n".join(lines).encode()
        return list(
            prepare(
                io.BytesIO(content),
                model=model,
                settings=settings or Settings(),
                batch_seed=batch_seed,
                tokeniser=tokeniser_of(model.path, model),
                **options,
            )
        )

    return read_windows


@pytest.fixture(scope="session")
def errors_of(read: Read) -> Callable[..., tuple[LineError, ...]]:
    """The errors for which a file fails as a whole."""

    def errors(lines: Sequence[str] | bytes, *args: Any, **options: Any) -> tuple[LineError, ...]:
        with pytest.raises(BatchInvalid) as caught:
            read(lines, *args, **options)
        assert caught.value.num_errors >= len(caught.value.errors)
        return caught.value.errors

    return errors


@pytest.fixture(scope="session")
def chat() -> Callable[..., str]:
    """A line for the chat endpoint; `content` is the user's message."""

    def line(custom_id: str, content: str = "hi", **body: Any) -> str:
        fields = {"model": "M", "messages": [{"role": "user", "content": content}], **body}
        return json.dumps(
            {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": fields},
            ensure_ascii=False,
        )

    return line


@pytest.fixture(scope="session")
def completion() -> Callable[..., str]:
    """A line for the completions endpoint."""

    def line(custom_id: str, prompt: Any = "hi", **body: Any) -> str:
        fields = {"model": "M", "prompt": prompt, **body}
        return json.dumps(
            {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": fields}
        )

    return line
