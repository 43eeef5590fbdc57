"""Two control processes and the broker between them, in the hands of a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from local_run import make_line
from pipeline import TENANT, Bench, make_result, make_segment

from gristmill.control.accept import accept_unheard
from gristmill.control.read_uploads import ReadUploads
from gristmill.control.submit import submit
from gristmill.control.tasks import ControlTasks
from gristmill.ledger import files
from gristmill.ledger.batch import Submission
from gristmill.models import Model
from gristmill.queues.base import BULK_LANE
from gristmill.stores.keys import file_key, segment_key, shard_key
from gristmill.stores.segments import bell_of
from gristmill.types import Endpoint
from gristmill.wire import decode_pointer, decode_shard, encode_segment

Message = tuple[str, tuple[str, ...]]
#: Three windows of the file, so three slices of a task that pauses whenever it may.
NUM_ROWS, ROWS_A_WINDOW = 12, 4


@dataclass
class Office:
    """Two control processes on one Ledger, and the broker between them, which tests play."""

    bench: Bench
    model: Model
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first, self.second = self.process(), self.process()

    def process(self, *models: Model) -> ControlTasks:
        """One more; its slices are as short as can be."""
        control = self.bench.control
        uploads = ReadUploads(control, models or [self.model])
        return ControlTasks(control, uploads, self._send, slice_s=0.0)

    def _send(self, task: str, *ids: str) -> None:
        self.messages.append((task, ids))

    def submit(self, *, window_s: int = 86_400) -> None:
        """A batch of an uploaded file, of which nothing was read yet."""
        body = "".join(f"{make_line(f'row-{i}')}\n" for i in range(NUM_ROWS)).encode()
        bench, now = self.bench, self.bench.control.now
        bench.store.put(file_key(TENANT, "file-1"), body)
        with bench.ledger.write() as conn:
            files.add(conn, files.File("file-1", TENANT, "batch", "in.jsonl", len(body), now))
        batch, _ = submit(
            *(bench.ledger, bench.store, bench.settings, TENANT),
            Submission(Endpoint.COMPLETIONS, "file-1", f"{window_s}s"),
            now_s=now,
            window_s=window_s,
            resent_since=None,
        )
        bench.batch_id = batch.id

    def take(self, task: str) -> list[tuple[str, ...]]:
        """The messages of one task, taken off the broker."""
        taken = [ids for name, ids in self.messages if name == task]
        self.messages = [message for message in self.messages if message[0] != task]
        return taken

    def deliver(self, process: ControlTasks, message: Message) -> None:
        task, ids = message
        getattr(process, task)(*ids)

    def work(self) -> None:
        """A worker answers whatever is on the queue; the sweep hears of it."""
        bench = self.bench
        for lease in bench.queue.receive(BULK_LANE, 99, 0):
            pointer = decode_pointer(lease.body)
            key = shard_key(TENANT, bench.batch_id, pointer.run_id, pointer.n)
            jobs = decode_shard(bench.store.get(key)).jobs
            results = [make_result(job, idx) for idx, job in enumerate(jobs)]
            segment = make_segment(bench.batch, pointer.n, results)
            bench.store.put(segment_key(bell_of(segment)), encode_segment(segment))
            bench.queue.ack(lease)
        accept_unheard(bench.control, bench.batch)
