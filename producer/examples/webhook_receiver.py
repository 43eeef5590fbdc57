"""A webhook receiver: nobody polls, the service tells when a batch has ended.

Beside a `gristmill up --model smollm2-135m` that may call this machine (it refuses private
addresses by default): GRISTMILL_WEBHOOK_ALLOWED_NETWORKS=127.0.0.0/8

    python producer/examples/webhook_receiver.py
"""

# %% The receiver: check the signature over the raw body, answer at once, work later.
import os
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gristmill
from gristmill.client import InvalidWebhookSignatureError

told: "queue.Queue[str]" = queue.Queue()
seen: set[str] = set()
secrets: list[str] = []


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            event = gristmill.verify_webhook(body, dict(self.headers), secrets)
        except InvalidWebhookSignatureError as error:
            print("refused:", error)
            self.send_response(401)
        else:
            self.send_response(204)
            # The same event may come twice, under the same id.
            if event.id not in seen:
                seen.add(event.id)
                told.put(event.data["id"])
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/hook"

# %% A batch that tells its end there. All its deliveries are signed with one secret; a receiver
# that is set up before the batch chooses it: webhook_secret="whsec_…".
client = gristmill.Client()
handle = client.submit(
    [{"prompt": f"{i} and {i} make"} for i in range(3)],
    model=os.environ.get("MODEL", "smollm2-135m"),
    max_tokens=4,
    webhook_url=url,
)
secrets.append(handle.webhook_secret or "")

# %% The event names the batch and no more; the rest is asked for.
batch_id = told.get(timeout=float(os.environ.get("PATIENCE_S", "600")))
batch = client.batches.retrieve(batch_id)
print(batch.id, batch.status)
for row in handle.results():
    print(row.custom_id, row.text or row.error)
server.shutdown()
