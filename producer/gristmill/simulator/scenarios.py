"""The scenarios that policies are compared on: fleets and traces, fixed before the policies were.

Each is a function of nothing; its trace follows from a seed. Machines are arithmetic for a model of
8 billion parameters in bfloat16 (16 GB of weights, 131 kB of KV cache a token): prefill at 40 % of
the dense bfloat16 peak, less for long prompts, whose attention grows; a decoding step reads all
weights once, and the KV cache of its rows, at 85 % of the memory's bandwidth.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.simulator.costs import Costs, Timing
from gristmill.simulator.machine import Machine
from gristmill.simulator.work import BatchSpec, Lengths, RowKind, Trace


@dataclass(frozen=True, slots=True)
class Death:
    """At `at` seconds the worker of this number in the fleet dies, as by kill -9."""

    at: float
    worker: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet, as (machine, how many), what arrives at it, and what befalls it."""

    fleet: tuple[tuple[Machine, int], ...]
    trace: Trace
    deaths: tuple[Death, ...] = ()
    timing: Timing = Timing()  # noqa: RUF009  (it is immutable)
    costs: Costs = Costs()  # noqa: RUF009

    @property
    def name(self) -> str:
        return self.trace.name


#: 80 GB at 3.35 TB/s, 990 TFLOPS.
BIG_GPU = Machine(
    "big-gpu",
    max_row_tokens=131_072,
    max_num_seqs=256,
    kv_tokens=400_000,
    prefill_tokens_per_s=(
        (128, 20_000.0),
        (512, 24_000.0),
        (2048, 24_000.0),
        (8192, 22_000.0),
        (32768, 17_000.0),
        (131072, 9_000.0),
    ),
    decode_tokens_per_s=22_000.0,
    lone_tokens_per_s=160.0,
    context_tokens_per_s=22e6,
    max_num_batched_tokens=2048,
)
#: 24 GB at 300 GB/s, 121 TFLOPS.
SMALL_GPU = Machine(
    "small-gpu",
    max_row_tokens=32_768,
    max_num_seqs=64,
    kv_tokens=36_000,
    prefill_tokens_per_s=(
        (128, 2_600.0),
        (512, 3_000.0),
        (2048, 3_000.0),
        (8192, 2_700.0),
        (32768, 2_000.0),
    ),
    decode_tokens_per_s=950.0,
    lone_tokens_per_s=16.0,
    context_tokens_per_s=2e6,
    max_num_batched_tokens=512,
)
#: 128 GB at 300 GB/s, 32 cores that do 20 TFLOPS with matrix instructions.
CPU = Machine(
    "cpu",
    max_row_tokens=131_072,
    max_num_seqs=32,
    kv_tokens=600_000,
    prefill_tokens_per_s=(
        (128, 450.0),
        (512, 500.0),
        (2048, 500.0),
        (8192, 450.0),
        (32768, 330.0),
        (131072, 170.0),
    ),
    decode_tokens_per_s=280.0,
    lone_tokens_per_s=16.0,
    context_tokens_per_s=2e6,
    max_num_batched_tokens=512,
)

_CHAT = RowKind(Lengths(300, 0.5, 20, 4000), Lengths(150, 0.6, 1), 512)
_LONG_CHAT = RowKind(Lengths(12_000, 0.6, 4000, 30_000), Lengths(200, 0.6, 1), 512, share=0.02)
_DOCUMENT = RowKind(Lengths(24_000, 0.6, 4000, 120_000), Lengths(300, 0.4, 1), 1024)


def uniform() -> Scenario:
    """Short rows, eight equal machines, four tenants that all submit at once."""
    batches = tuple(
        BatchSpec(f"{tenant}-{i}", f"tenant-{tenant}", 0.0, 5000, (_CHAT,))
        for i in range(2)
        for tenant in "abcd"
    )
    about = (
        "Short rows of four tenants on eight equal machines. All workers are alike, so the Router "
        "has one Lane and nothing to choose; shares between tenants are what differs from a queue."
    )
    return Scenario(((SMALL_GPU, 8),), Trace("uniform", about, batches))


def mixed() -> Scenario:
    """Short rows and very long prompts for forty minutes on three kinds of machines.

    The whole of it is about a tenth more than the fleet can do in that time.
    """
    rng = random.Random("mixed/arrivals")
    short = RowKind(_CHAT.prompt, _CHAT.output, _CHAT.max_tokens, share=0.98)
    batches = [
        BatchSpec("documents-0", "documents", 0.0, 2000, (_DOCUMENT,)),
        BatchSpec("documents-1", "documents", 1200.0, 2000, (_DOCUMENT,)),
    ]
    at = 0.0
    for i in range(40):
        at += rng.expovariate(1 / 60.0)
        tenant = f"chat-{rng.randrange(4)}"
        num_rows = rng.randrange(500, 2501)
        batches.append(BatchSpec(f"chat-{i:02}", tenant, at, num_rows, (short, _LONG_CHAT)))
    about = (
        "Two batches of very long prompts, and forty of short ones (2 % of their rows are long) "
        "that arrive one after the other. Small GPUs take rows up to 32k tokens, and few long ones "
        "at a time; CPUs take all, and long prompts slowly."
    )
    fleet = ((BIG_GPU, 2), (SMALL_GPU, 6), (CPU, 4))
    return Scenario(fleet, Trace("mixed", about, tuple(batches)))


def deadlines() -> Scenario:
    """A backlog without hurry, and bursts of two tenants that are due soon, on equal machines."""
    batches = [BatchSpec("backlog", "patient", 0.0, 40_000, (_CHAT,), due_in_s=24 * 3600.0)]
    for i in range(6):
        at = 300.0 + 600.0 * i
        batches.append(BatchSpec(f"small-{i}", "hurried-a", at, 1500, (_CHAT,), due_in_s=600.0))
    for i in range(3):
        at = 420.0 + 1200.0 * i
        batches.append(BatchSpec(f"large-{i}", "hurried-b", at, 8000, (_CHAT,), due_in_s=720.0))
    about = (
        "Bursts of two tenants with deadlines in ten and twelve minutes beside a backlog that is "
        "due in a day, on eight equal machines. Order is all that there is to choose."
    )
    return Scenario(((SMALL_GPU, 8),), Trace("deadlines", about, tuple(batches)))


def no_gain() -> Scenario:
    """Rows of all lengths in one batch of one tenant, on equal machines that can all run them."""
    kind = RowKind(Lengths(400, 1.2, 20, 30_000), Lengths(150, 0.6, 1), 512)
    about = (
        "One batch of one tenant, all lengths, on eight equal machines that can run every row. "
        "Routing cannot help here: the expected gain is 1.0."
    )
    batch = BatchSpec("all", "tenant", 0.0, 20_000, (kind,))
    return Scenario(((SMALL_GPU, 8),), Trace("no-gain", about, (batch,)))


def failing() -> Scenario:
    """The mixed trace, and after ten minutes both big GPUs are taken away, and a small one."""
    base = mixed()
    about = (
        "The mixed trace; after ten minutes both big GPUs die, and a small one. What was sent to "
        "their pool is recalled, and the rest of the fleet does it."
    )
    trace = Trace("failing", about, base.trace.batches)
    return Scenario(base.fleet, trace, (Death(600.0, 0), Death(600.0, 1), Death(660.0, 2)))


#: By name: those that come with the program.
SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "uniform": uniform,
    "mixed": mixed,
    "deadlines": deadlines,
    "no-gain": no_gain,
    "failing": failing,
}
