"""Values that the chart's schema must refuse, each with the place that is to be named."""

from __future__ import annotations

from typing import Any

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"wroker": {}}, ""),
    ({"worker": {"kind": "statefulset"}}, "worker.kind"),
    ({"worker": {"scaling": {"trigger": "cron"}}}, "worker.scaling.trigger"),
    ({"worker": {"scaling": {"maxReplicas": 0}}}, "worker.scaling.maxReplicas"),
    ({"worker": {"scaling": {"maxReplica": 3}}}, "worker.scaling"),
    ({"worker": {"drainGraceSeconds": 0}}, "worker.drainGraceSeconds"),
    ({"worker": {"terminationMarginSeconds": 0}}, "worker.terminationMarginSeconds"),
    ({"worker": {"idleExit": "soon"}}, "worker.idleExit"),
    ({"model": {"dtype": "auto"}}, "model.dtype"),
    ({"model": {"path": "my-model"}}, "model.path"),
    ({"queue": {"url": "redis://:secret@queue:6379/0"}}, "queue.url"),
    ({"broker": {"url": "amqp://queue"}}, "broker.url"),
    ({"store": {"url": "s3://key:secret@bucket"}}, "store.url"),
    ({"ledger": {"url": "postgresql://user:secret@host/db"}}, "ledger"),
    ({"settings": {"SHARD_MAX_JOBS": 4}}, "settings"),
    ({"worker": {"settings": {"GRISTMILL_DTYPE": "float32"}}}, "worker.settings.GRISTMILL_DTYPE"),
    ({"settings": {"GRISTMILL_KEY_PEPPER": "in a file"}}, "settings.GRISTMILL_KEY_PEPPER"),
    ({"environment": {"GRISTMILL_LEASE_S": "60"}}, "environment.GRISTMILL_LEASE_S"),
    ({"image": {"worker": {"digest": "latest"}}}, "image.worker.digest"),
    ({"api": {"replicas": 0}}, "api.replicas"),
    ({"networkPolicy": {"queue": {"to": [{"cidr": "10.0.0.0/8"}]}}}, "networkPolicy.queue.to.0"),
]
