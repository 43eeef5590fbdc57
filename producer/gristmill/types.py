"""The contract that control side and workers share: the nouns, nothing but values.

Only the standard library is imported here, so that an engine machine needs nothing else of ours.
Everything is immutable. `wire.py` says how these values are stored and sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gristmill.embedding import EmbeddingParams
from gristmill.histogram import Histogram
from gristmill.marks import Mark
from gristmill.messages import CONTROL_LANE as CONTROL_LANE
from gristmill.messages import Bell as Bell
from gristmill.messages import ShardPointer as ShardPointer
from gristmill.outcome import RowError as RowError
from gristmill.outcome import Times as Times
from gristmill.outcome import TokenLogprob as TokenLogprob
from gristmill.outcome import Usage as Usage
from gristmill.scoring import Scoring


class JobKind(StrEnum):
    """What is wanted of a Job: new tokens, log-probabilities of its prompts, or their vectors."""

    GENERATE = "generate"
    SCORE = "score"
    EMBED = "embed"


class Endpoint(StrEnum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    SCORE = "/v1/score"


def kind_of(endpoint: Endpoint) -> JobKind:
    """What Jobs of an endpoint ask for, unless a row asks for something else."""
    kinds = {Endpoint.EMBEDDINGS: JobKind.EMBED, Endpoint.SCORE: JobKind.SCORE}
    return kinds.get(endpoint, JobKind.GENERATE)


class FinishReason(StrEnum):
    """Why a row stopped: `stop` (end token or stop string) or `length` (a token limit).

    Where no token was wanted (Jobs that score or embed) it is `length`.
    """

    STOP = "stop"
    LENGTH = "length"


class GrammarKind(StrEnum):
    """How a Grammar is written: its `text` is a JSON Schema, a regular expression (of the whole
    answer), a JSON list of strings to choose from, or a grammar in the Lark-like language of
    llguidance."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer may look like. With `strict` a finished document is also checked against its
    schema by a second implementation, and a row whose document fails has an error instead."""

    kind: GrammarKind
    text: str
    strict: bool = False


class ToolFormat(StrEnum):
    """How a model writes calls of tools (tool_formats.py)."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    MISTRAL_ARGS = "mistral_args"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """That calls of tools are looked for in an answer: how they are written, and of which tools."""

    format: ToolFormat
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick tokens. The defaults are the API's neutral ones, never the model folder's.

    `temperature` 0 is greedy. `top_k` 0 and `min_p` 0 are off. `seed` is the row's own seed
    (64 bits); it is 0 for greedy rows, whose result does not depend on it. The first `min_tokens`
    tokens never end the row. `stop_token_ids` end it as the model's end tokens do. With a `grammar`
    only tokens are picked that lead to an answer of that form; those that end the row only where
    it is complete, and where nothing can follow the row ends by itself. Control tokens have no text
    in an answer, unless `skip_special_tokens` is false. `logprobs` is how many likeliest tokens to
    report beside each sampled one; None reports no log-probabilities. `n` is the number of Choices
    of each prompt; the seed of the first one is `seed`. `max_tokens` is 0 for Jobs that generate
    nothing. With `echo` the text of the prompt stands before the answer.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    grammar: Grammar | None = None
    tools: ToolUse | None = None
    echo: bool = False
    skip_special_tokens: bool = True

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        penalties = (self.frequency_penalty, self.presence_penalty, self.repetition_penalty)
        return penalties != (0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the input: its place among the non-blank lines (from 0), and its name."""

    idx: int
    custom_id: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one Sequence starts from.

    With `scored_from` the log-probabilities of its own tokens from that position on are wanted. It
    is 1 at least, since nothing stands before the first token, and the prompt's length at most.
    `num_dropped` tokens were left out, as the caller had allowed.
    """

    token_ids: tuple[int, ...]
    scored_from: int | None = None
    num_dropped: int = 0

    @property
    def scored_ids(self) -> tuple[int, ...]:
        """The tokens whose log-probabilities are wanted."""
        return () if self.scored_from is None else self.token_ids[self.scored_from :]


@dataclass(frozen=True, slots=True)
class Job:
    """A Request made ready for an engine. Several rows when they must get the same answer.

    Each prompt has `params.n` Choices. They are numbered prompt by prompt, so that Choice c belongs
    to prompts[c // params.n].
    """

    rows: tuple[Row, ...]
    prompts: tuple[Prompt, ...]
    params: SamplingParams
    kind: JobKind = JobKind.GENERATE
    #: Of Jobs that embed.
    embedding: EmbeddingParams | None = None
    #: What is made of the log-probabilities, of rows of /v1/score.
    scoring: Scoring | None = None
    #: Identity of the LoRA adapter that it runs with, by its Shard's pin; empty: the model itself.
    adapter: str = ""
    #: Where its answers end, in tokens of prompt and answer (row_limits.py); 0: at the window.
    row_limit: int = 0

    @property
    def prompt(self) -> Prompt:
        """The prompt of a Job that has one."""
        (prompt,) = self.prompts
        return prompt

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt's tokens, of a Job that has one prompt."""
        return self.prompt.token_ids

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)


@dataclass(frozen=True, slots=True)
class ModelPin:
    """What a Shard was made for. A worker that holds anything else gives the Shard back.

    With a LoRA adapter `revision` is that of the base, a plus, and the adapter's identity.
    """

    name: str
    revision: str
    tokenizer_hash: str
    dtype: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is, whatever it is called."""
        return self.revision, self.tokenizer_hash, self.dtype

    @property
    def adapter(self) -> str:
        """Identity of the LoRA adapter; empty: the model itself."""
        return self.revision.partition("+")[2]

    @property
    def base_revision(self) -> str:
        return self.revision.partition("+")[0]


@dataclass(frozen=True, slots=True)
class Shard:
    """Jobs of one Batch that travel together: the unit of queueing and lease. Job j is jobs[j]."""

    tenant_id: str
    batch_id: str
    run_id: str
    n: int
    endpoint: Endpoint
    model: ModelPin
    jobs: tuple[Job, ...]
    #: Of the chat template that its prompts were rendered with, if any.
    template_hash: str = ""

    @property
    def pointer(self) -> ShardPointer:
        tokens = sum(job.num_prompt_tokens for job in self.jobs)
        return ShardPointer(
            self.tenant_id, self.batch_id, self.run_id, self.n, len(self.jobs), tokens
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. `text` is the exact decode of `token_ids` up to the stop.

    Where the row asks for log-probabilities, `logprobs` and `text_offsets` have one entry for each
    of `token_ids`, also for those whose text a stop string cut off: their offset is the end of the
    text. With `echo` the prompt's text stands before, and `text_offsets` has entries for its tokens
    first. `scored` has one entry for each of the prompt's `scored_ids`. `token_bytes` has the bytes
    of each id that occurs in `token_ids`, `logprobs`, `scored_ids` and `scored`, and with `echo` in
    the prompt. `embedding` is the prompt's vector (32-bit floats), of Jobs that embed.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] = ()
    text_offsets: tuple[int, ...] = ()
    token_bytes: Mapping[int, bytes] = field(default_factory=dict)
    scored: tuple[TokenLogprob, ...] = ()
    embedding: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RowResult:
    """The answer to one Job, and so to each of its rows; no `choices` where there is an `error`.

    `usage` counts each prompt once, and the tokens of all Choices. `ttft_s` runs from the Job's
    entry into the engine to its first token, `itl_s` is the mean time between tokens of a Choice.
    """

    job_idx: int
    rows: tuple[Row, ...]
    usage: Usage = field(default_factory=Usage)
    choices: tuple[Choice, ...] = ()
    error: RowError | None = None
    finished_at: int = 0
    ttft_s: float = 0.0
    itl_s: float = 0.0
    times: Times = field(default_factory=Times)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tokens `start` and following of one Choice of a Job that still runs; a delta.

    `times_ms` (one per token) count from the Job's entry into the engine. `logprobs` (one per
    token, where the Job asks for them) cannot be computed again without decoding. The first
    Checkpoint that an Attempt writes of a Choice starts at 0, so that every Attempt can be read by
    itself. A Choice that has ended is under way until all Choices of its Job have.
    """

    job_idx: int
    choice_idx: int
    start: int
    token_ids: tuple[int, ...]
    times_ms: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """What one Attempt wrote at once: rows finished since its last Segment, rows under way."""

    tenant_id: str
    batch_id: str
    run_id: str
    shard_n: int
    attempt_id: str
    seq: int
    results: tuple[RowResult, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    mark: Mark = field(default_factory=Mark)
    #: The versions of what computed the results.
    engine_version: str = ""
