"""Each component may do on AWS what its code calls, and nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import kombu.transport.SQS
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from policies import BUCKET, QUEUES, VALUES, Statement, actions_of, allows, read_policy

from gristmill.cli import secret_store
from gristmill.fleet import Pool
from gristmill.messages import CONTROL_LANE
from gristmill.process import cloudwatch
from gristmill.queues import sqs, sqs_lanes
from gristmill.queues.base import BULK_LANE
from gristmill.stores import s3, s3_probe, s3_reader
from gristmill.stores.keys import batch_key, file_key, segments_prefix, shard_key, stop_key

COMPONENTS = ["api", "control", "worker"]
KEYS = "keys"
STORE = f"{BUCKET}/mill"
#: What AWS lets nobody narrow down to a resource; the second one is narrowed by its condition.
ANY_RESOURCE = {"sqs:ListQueues", "cloudwatch:PutMetricData"}
#: Actions whose names differ from those of the calls that need them.
NAMED_OTHERWISE = {
    "s3:ListBucket": "list_objects_v2",
    "s3:ListBucketMultipartUploads": "list_multipart_uploads",
}
#: Calls that need the permission of another one.
NEED = {
    "head_object": "s3:GetObject",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "list_objects_v2": "s3:ListBucket",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "delete_message_batch": "sqs:DeleteMessage",
    "change_message_visibility_batch": "sqs:ChangeMessageVisibility",
}
#: Keys of conditions that AWS has a value of at these actions (Service Authorization Reference).
#: A condition on any other is never fulfilled. ListBucketMultipartUploads has no `s3:prefix`.
CONDITIONS = {
    "s3:ListBucket": {"s3:prefix", "s3:delimiter", "s3:max-keys"},
    "cloudwatch:PutMetricData": {"cloudwatch:namespace"},
}
#: What only `gristmill run` does, with Lanes of its own.
OF_RUN = {"sqs:DeleteQueue"}
OURS = {
    "s3": (s3, s3_probe, s3_reader),
    "sqs": (sqs, sqs_lanes),
    "cloudwatch": (cloudwatch,),
    "secretsmanager": (secret_store,),
}
T, B, R = "acme", "batch_1", "run_1"
SHARD = shard_key(T, B, R, 0)
SEGMENT = f"{segments_prefix(T, B, R, 0)}attempt_1/00000000"
LANE = Pool("revision", "hash", "float32", 8192).lane


@pytest.fixture(scope="module")
def policies() -> dict[str, list[Statement]]:
    return {component: read_policy(component) for component in [*COMPONENTS, KEYS]}


def source_of(*modules: object) -> str:
    return "\n".join(Path(str(module.__file__)).read_text("utf-8") for module in modules)  # type: ignore[attr-defined]


def calls_of(service: str) -> set[str]:
    """What our code asks of a service, by the names that boto3 has for it."""
    text = source_of(*OURS[service])
    direct = re.findall(r"\bself\._(?:client|calls|polls)\.([a-z0-9_]+)\(", text)
    direct += re.findall(r"\bclient\.([a-z0-9_]+)\(", text)
    pages = re.findall(r'get_paginator\("([a-z0-9_]+)"\)', text)
    return {*direct, *pages} - {"close", "get_paginator", "generate_presigned_url"}


def action_for(service: str, call: str) -> str:
    return NEED.get(call) or f"{service}:" + "".join(w.capitalize() for w in call.split("_"))


def snake(action: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", action.partition(":")[2]).lower()


@pytest.mark.parametrize("component", [*COMPONENTS, KEYS, "secrets"])
def test_nothing_is_allowed_wholesale(component: str) -> None:
    for statement in read_policy(component):
        assert statement.effect == "Allow"
        assert not [action for action in statement.actions if "*" in action]
        if "*" in statement.resources:
            assert set(statement.actions) <= ANY_RESOURCE


@pytest.mark.parametrize("component", [*COMPONENTS, KEYS])
def test_each_action_is_one_that_the_code_calls(
    component: str, policies: dict[str, list[Statement]]
) -> None:
    ours = {action_for(service, call) for service in OURS for call in calls_of(service)}
    celery = source_of(kombu.transport.SQS)

    for statement in policies[component]:
        of_celery = any("-cp-" in one for one in statement.resources)
        for action in statement.actions:
            if of_celery or action == "sqs:ListQueues":
                assert f".{snake(action)}(" in celery, action
            else:
                assert action in ours, action


def test_each_call_of_the_code_is_allowed_to_somebody(
    policies: dict[str, list[Statement]],
) -> None:
    allowed = {action for policy in policies.values() for action in actions_of(policy)}
    called = {action_for(service, call) for service in OURS for call in calls_of(service)}

    assert called - allowed == OF_RUN


def test_a_worker_reads_batches_and_writes_segments_and_no_more(
    policies: dict[str, list[Statement]],
) -> None:
    worker = policies["worker"]
    readable = [SHARD, SEGMENT, batch_key(T, B), stop_key(T, B)]

    assert all(allows(worker, "s3:GetObject", f"{STORE}/{key}") for key in readable)
    assert allows(worker, "s3:PutObject", f"{STORE}/{SEGMENT}")
    assert allows(worker, "s3:ListBucket", BUCKET, s3__prefix=f"mill/{segments_prefix(T, B, R, 0)}")
    for key in (file_key(T, "file-1"), "secrets"):
        assert not allows(worker, "s3:GetObject", f"{STORE}/{key}")
        assert not allows(worker, "s3:PutObject", f"{STORE}/{key}")
    for key in readable[:1] + readable[2:]:
        assert not allows(worker, "s3:PutObject", f"{STORE}/{key}")
    assert not allows(worker, "s3:DeleteObject", f"{STORE}/{SEGMENT}")
    assert not allows(worker, "s3:ListBucket", BUCKET, s3__prefix="mill/")
    assert not allows(worker, "s3:ListBucket", BUCKET, s3__prefix=f"mill/t/{T}/files/")


def test_a_worker_holds_shards_rings_and_can_call_no_task(
    policies: dict[str, list[Statement]],
) -> None:
    worker = policies["worker"]
    hold = ("sqs:GetQueueUrl", "sqs:ReceiveMessage", "sqs:DeleteMessage")

    for lane in (BULK_LANE, LANE):
        assert all(allows(worker, action, f"{QUEUES}-{lane}") for action in hold)
        assert not allows(worker, "sqs:SendMessage", f"{QUEUES}-{lane}")
        assert allows(worker, "sqs:SendMessage", f"{QUEUES}-{lane}-dead")
    assert allows(worker, "sqs:SendMessage", f"{QUEUES}-{CONTROL_LANE}")
    assert not allows(worker, "sqs:ReceiveMessage", f"{QUEUES}-{CONTROL_LANE}")
    for action in set(actions_of(worker)):
        for task in ("control", "ingest", "webhooks"):
            assert not allows(worker, action, f"{QUEUES}-cp-{task}")
        assert action.partition(":")[0] in ("s3", "sqs")


def test_only_what_starts_api_and_control_reads_secrets() -> None:
    assert list(actions_of(read_policy("secrets"))) == ["secretsmanager:GetSecretValue"]
    text = (Path(__file__).parents[2] / "infra/terraform/modules/permissions/main.tf").read_text()

    assert 'role   = aws_iam_role.start["service"].id' in text
    assert text.count("secrets.json") == 1


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_may_list_where_it_reads_and_nowhere_else(
    component: str, policies: dict[str, list[Statement]]
) -> None:
    read = [batch_key(T, B), stop_key(T, B), SHARD, SEGMENT, "probe-1"]
    read += [] if component == "worker" else [file_key(T, "file-1")]

    for key in read:
        assert allows(policies[component], "s3:GetObject", f"{STORE}/{key}")
        assert allows(policies[component], "s3:ListBucket", BUCKET, s3__prefix=f"mill/{key}")
    for prefix in ("", "mill/", "other/t/"):
        assert not allows(policies[component], "s3:ListBucket", BUCKET, s3__prefix=prefix)


@pytest.mark.parametrize("component", [*COMPONENTS, KEYS])
def test_a_condition_is_one_that_aws_knows_of_the_action(
    component: str, policies: dict[str, list[Statement]]
) -> None:
    for statement in policies[component]:
        for keys in statement.condition.values():
            for action in statement.actions:
                assert set(keys) <= CONDITIONS.get(action, set()), action


def test_control_looks_for_unfinished_uploads(policies: dict[str, list[Statement]]) -> None:
    assert allows(policies["control"], "s3:ListBucketMultipartUploads", BUCKET)


def test_what_makes_the_first_key_writes_its_secret_and_reads_none(
    policies: dict[str, list[Statement]],
) -> None:
    assert list(actions_of(policies[KEYS])) == ["secretsmanager:PutSecretValue"]
    assert policies[KEYS][0].resources == (VALUES["key"],)


def test_the_api_reaches_no_queue_and_control_every_lane(
    policies: dict[str, list[Statement]],
) -> None:
    api, control = policies["api"], policies["control"]

    assert {action.partition(":")[0] for action in actions_of(api)} == {"s3"}
    for lane in (BULK_LANE, LANE):
        assert allows(control, "sqs:SendMessage", f"{QUEUES}-{lane}")
        assert not allows(control, "sqs:ReceiveMessage", f"{QUEUES}-{lane}")
    assert allows(control, "sqs:ReceiveMessage", f"{QUEUES}-{CONTROL_LANE}")
    assert allows(control, "cloudwatch:PutMetricData", "*", cloudwatch__namespace="gristmill")
    assert not allows(control, "cloudwatch:PutMetricData", "*", cloudwatch__namespace="other")
