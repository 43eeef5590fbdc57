"""What infra/terraform makes: its form, and a batch over it on a server like that of AWS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aws_calls import Call, read_calls
from aws_server import REGION, AwsServer, running_aws
from commands import NURSERY
from installations import Fleet, commands_in, start_fleet
from nursery import Nursery
from openai import OpenAI
from pipeline import fast_folder
from policies import allows, parse_policy
from postgresql import postgresql_process as postgresql_process
from terraform import SOURCE, Terraform, terraform_command

from gristmill.queues.sqs import open_url

ACCOUNT = "123456789012"
#: Needs nothing that this server lacks.
ROOT = """
provider "aws" {
  region            = "%(region)s"
  s3_use_path_style = true
}

module "gristmill" {
  source = "../terraform"

  name            = "%(name)s"
  bucket_name     = "%(name)s-rows"
  model           = "/models/M"
  service_image   = "registry.example/gristmill-service"
  worker_image    = "registry.example/gristmill-worker:cuda"
  certificate_arn = "%(certificate)s"
  keep            = false
  num_zones       = 2
  lease_s         = 4
  machine_image_id = "ami-12c6146b"
}

output "all" {
  value = module.gristmill
}
"""
#: What a call is of, by IAM's names, where they differ from those of the API.
PERMISSIONS = {
    "HeadObject": "GetObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "ListObjectsV2": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "DeleteMessageBatch": "DeleteMessage",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
}


@dataclass
class Made:
    name: str
    aws: AwsServer
    outputs: dict[str, Any]
    bucket_policy: dict[str, Any]

    def url(self, which: str) -> str:
        """An output that is a URL, on this server."""
        return f"{self.outputs[which]}&endpoint={self.aws.url}"

    def policy(self, component: str) -> dict[str, Any]:
        found = self.aws.client("iam").get_role_policy(
            RoleName=f"{self.name}-{component}", PolicyName=component
        )
        document: dict[str, Any] = found["PolicyDocument"]
        return document


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    """Applied, and destroyed again: nothing of it is left."""
    terraform_command()
    name = f"t{uuid4().hex[:6]}"
    with fast_folder() as folder, running_aws() as aws:
        terraform = Terraform(folder, {"AWS_ENDPOINT_URL": aws.url})
        root = folder / "root"
        root.mkdir()
        made = aws.client("acm").request_certificate(DomainName="mill.example")
        values = {"name": name, "region": REGION, "certificate": made["CertificateArn"]}
        (root / "main.tf").write_text(ROOT % values)
        terraform.init(root)
        terraform.call("apply", "-auto-approve", "-input=false")
        policy = aws.client("s3").get_bucket_policy(Bucket=f"{name}-rows")["Policy"]
        # The server of the tests has no TLS, so the bucket would refuse everything.
        aws.client("s3").delete_bucket_policy(Bucket=f"{name}-rows")
        yield Made(name, aws, terraform.outputs()["all"], json.loads(policy))
        terraform.call("destroy", "-auto-approve", "-input=false")
        # Lanes of pools are Gristmill's own: Terraform knows nothing of them (README.md).
        left = [url.rpartition("/")[2] for url in all_queues(aws)]
        assert [one for one in left if one.startswith(name) and "-pool-" not in one] == []
        assert f"{name}-rows" not in [b["Name"] for b in aws.client("s3").list_buckets()["Buckets"]]
        assert not [r for r in aws.client("iam").list_roles()["Roles"] if name in r["RoleName"]]


@pytest.fixture(scope="module")
def fleet(made: Made, postgresql_process: Any) -> Iterator[Fleet]:
    """API, control and worker, pointed at what was made; RDS here is a name without a server."""
    with (
        fast_folder() as folder,
        closing(Nursery(NURSERY)) as nursery,
        commands_in(folder, nursery) as commands,
    ):
        secret = made.aws.client("secretsmanager").get_secret_value(
            SecretId=made.outputs["secret_arns"]["key-pepper"]
        )
        commands.environ |= {
            "GRISTMILL_KEY_PEPPER": secret["SecretString"],
            "GRISTMILL_CLOUDWATCH_NAMESPACE": made.outputs["metrics_namespace"],
            "AWS_ENDPOINT_URL_CLOUDWATCH": made.aws.url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CALLS": str(folder),
        }
        yield start_fleet(
            commands,
            postgresql=postgresql_process,
            queue_url=made.url("queue_url"),
            broker_url=made.url("queue_url"),
            store_url=made.url("store_url"),
            num_controls=1,
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_and_with_it_every_module_is_valid() -> None:
    with fast_folder() as folder:
        terraform = Terraform(folder)
        terraform.init(folder / "terraform/examples/fleet")
        said = json.loads(terraform.call("validate", "-json"))
        known = json.loads((terraform.root / ".terraform/modules/modules.json").read_text())

    assert said["valid"] and not said["diagnostics"], said
    used = {Path(module["Dir"]).name for module in known["Modules"]}
    assert {path.name for path in (SOURCE / "modules").iterdir()} <= used


#: Parts that are left out; with the last ones the network and the ledger are there already.
WITHOUT = [
    {"network", "database", "services", "workers", "alarms"},
    {"workers"},
    {"services", "database"},
    {"network", "database"},
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_is_there_already_is_left_out_and_nothing_asks_for_it() -> None:
    terraform_command()
    values = {
        "name": "parts",
        "region": REGION,
        "certificate": f"arn:aws:acm:{REGION}:{ACCOUNT}:certificate/1",
    }
    with fast_folder() as folder, running_aws() as aws:
        terraform = Terraform(folder, {"AWS_ENDPOINT_URL": aws.url})
        root = folder / "root"
        root.mkdir()
        subnets = aws.client("ec2").describe_subnets()["Subnets"]
        there = {
            "vpc_id": subnets[0]["VpcId"],
            "private_subnet_ids": [one["SubnetId"] for one in subnets[:2]],
            "ledger_url": "postgresql://gristmill@db.example/gristmill",
        }
        planned = []
        for left_out in WITHOUT:
            parts: dict[str, Any] = {"parts": dict.fromkeys(sorted(left_out), False)}
            parts |= there if left_out == WITHOUT[-1] else {}
            said = "".join(f"  {name} = {json.dumps(value)}\n" for name, value in parts.items())
            root.joinpath("main.tf").write_text(
                (ROOT % values).replace("  num_zones ", f"{said}  num_zones ")
            )
            if not planned:
                terraform.init(root)
            terraform.call("plan", "-input=false", "-out=plan")
            plan = json.loads(terraform.call("show", "-json", "plan"))
            planned.append({one["type"] for one in plan["resource_changes"]})

    least, no_workers, workers_only, own_network = planned
    assert {"aws_s3_bucket", "aws_sqs_queue", "aws_iam_role"} <= least
    assert not {one for one in least if one.startswith(("aws_ecs", "aws_vpc", "aws_db", "aws_lb"))}
    assert "aws_autoscaling_group" not in no_workers and "aws_ecs_service" in no_workers
    assert "aws_autoscaling_group" in workers_only and "aws_db_instance" not in workers_only
    assert "aws_lb" not in workers_only
    assert "aws_ecs_service" in own_network and not {"aws_vpc", "aws_db_instance"} & own_network


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_queues_are_those_that_gristmill_itself_would_make(made: Made) -> None:
    prefix = f"o{uuid4().hex[:6]}"
    queue = open_url(f"sqs://{prefix}?region={REGION}&endpoint={made.aws.url}", 4)
    queue.receive("bulk", 1, 0)
    queue.close()

    for lane in ("bulk", "control"):
        for name in (lane, f"{lane}-dead"):
            ours, theirs = (attributes(made.aws, f"{p}-{name}") for p in (made.name, prefix))
            assert ours == theirs, name


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_bucket_is_private_and_refuses_what_does_not_come_over_tls(made: Made) -> None:
    (statement,) = made.bucket_policy["Statement"]

    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    blocked = made.aws.client("s3").get_public_access_block(Bucket=f"{made.name}-rows")
    assert all(blocked["PublicAccessBlockConfiguration"].values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_role_is_for_tasks_of_this_account_alone(made: Made) -> None:
    roles = [r for r in made.aws.client("iam").list_roles()["Roles"] if made.name in r["RoleName"]]
    trusts = {role["RoleName"]: role["AssumeRolePolicyDocument"]["Statement"] for role in roles}
    machine = trusts.pop(f"{made.name}-machine")

    assert len(trusts) == 6 and machine[0]["Principal"] == {"Service": "ec2.amazonaws.com"}
    region = {"ArnLike": {"aws:SourceArn": f"arn:aws:ecs:{REGION}:{ACCOUNT}:*"}}
    for name, (statement,) in trusts.items():
        assert statement["Principal"] == {"Service": "ecs-tasks.amazonaws.com"}
        account = {"StringEquals": {"aws:SourceAccount": ACCOUNT}}
        assert statement["Condition"] == account | ({} if "-start-" in name else region)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_batch_runs_over_what_terraform_made(made: Made, fleet: Fleet) -> None:
    asked = [fleet.row(f"row-{n}") for n in range(10)]

    batch = fleet.wait(fleet.create(asked))

    assert batch.status == "completed"
    lines = fleet.lines(batch.output_file_id)
    assert [line["custom_id"] for line in lines] == [row["custom_id"] for row in asked]
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert_nothing_was_asked_that_the_policies_forbid(made, fleet)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_key_lies_in_its_secret_and_in_no_log(made: Made, fleet: Fleet) -> None:
    task = made.aws.client("ecs").describe_task_definition(taskDefinition=f"{made.name}-first-key")
    (container,) = task["taskDefinition"]["containerDefinitions"]
    fleet.commands.environ |= {"AWS_ENDPOINT_URL_SECRETS_MANAGER": made.aws.url}
    assert fleet.postgresql is not None
    ledger = ("--ledger", fleet.postgresql.url)

    ran = fleet.commands.start(*container["command"], *ledger)
    code = ran.child.wait(60)
    ran.is_over = True

    assert code == 0, ran.err.read_text()
    name = made.outputs["read_first_key"].rpartition(" ")[2]
    key = made.aws.client("secretsmanager").get_secret_value(SecretId=name)["SecretString"]
    assert OpenAI(base_url=str(fleet.client.base_url), api_key=key).models.list().data
    assert key not in ran.out.read_text() + ran.err.read_text()
    assert f"--task-definition {made.name}-first-key " in made.outputs["make_first_key"]


def assert_nothing_was_asked_that_the_policies_forbid(made: Made, fleet: Fleet) -> None:
    for component in ("api", "control", "worker"):
        policy = parse_policy(made.policy(component))
        calls = read_calls(fleet.commands.folder / f"{component}.calls")
        assert calls
        forbidden = [call for call in sorted(calls) if not is_allowed(policy, call)]
        assert forbidden == [], component


def is_allowed(policy: Any, call: Call) -> bool:
    action = f"{call.service}:{PERMISSIONS.get(call.operation, call.operation)}"
    if call.service == "s3":
        resource = f"arn:aws:s3:::{call['Bucket']}" + (f"/{call['Key']}" if call["Key"] else "")
        return allows(policy, action, resource, s3__prefix=call["Prefix"])
    if call.service == "sqs" and call.operation != "ListQueues":
        name = call["QueueName"] or call["QueueUrl"].rpartition("/")[2]
        return allows(policy, action, f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")
    return allows(policy, action, "*", cloudwatch__namespace=call["Namespace"])


def attributes(aws: AwsServer, name: str) -> dict[str, str]:
    """Of a queue, those that decide how it behaves."""
    sqs = aws.client("sqs")
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    redrive = json.loads(found.get("RedrivePolicy", "{}"))
    redrive["deadLetterTargetArn"] = redrive.get("deadLetterTargetArn", "").rpartition("-")[2]
    redrive["maxReceiveCount"] = int(redrive.get("maxReceiveCount", 0))
    wanted = ("VisibilityTimeout", "MessageRetentionPeriod", "DelaySeconds", "FifoQueue")
    return {name: found.get(name, "") for name in wanted} | {"redrive": str(redrive)}


def all_queues(aws: AwsServer) -> list[str]:
    urls: list[str] = aws.client("sqs").list_queues().get("QueueUrls", [])
    return urls
