# Who may do what: a role for each component, with what its code calls and nothing else.
#
# The policies are JSON, so that a test reads them without Terraform (tests/infra). A worker
# may touch its Lanes, read what lies under batches and write Segments: it reaches no uploaded file,
# no database, no secret and no task of the control side.
#
# S3 says that an object is not there only to somebody who may list its key (s3:prefix is then the
# key itself), and that reading is forbidden to all others. So each may list where it reads.
# Of unfinished uploads S3 knows no such condition: who may list any may list those of the bucket.

locals {
  account = data.aws_caller_identity.here.account_id
  store   = "${var.bucket_arn}/${var.bucket_prefix}"
  policies = {
    for component in ["api", "control", "worker", "keys"] : component => templatefile(
      "${path.module}/policies/${component}.json",
      {
        bucket    = var.bucket_arn
        store     = local.store
        prefix    = var.bucket_prefix
        queues    = var.queues_arn_prefix
        namespace = var.metrics_namespace
        key       = var.key_secret_arn
      }
    )
  }
}

resource "aws_iam_role" "component" {
  for_each = local.policies

  name               = "${var.name}-${each.key}"
  description        = "What the ${each.key} of Gristmill may do."
  assume_role_policy = data.aws_iam_policy_document.ecs["task"].json
}

resource "aws_iam_role_policy" "component" {
  for_each = local.policies

  name   = each.key
  role   = aws_iam_role.component[each.key].id
  policy = each.value
}

# What starts the tasks: it fetches images, writes logs, and hands secrets over to those that have any.

resource "aws_iam_role" "start" {
  for_each = toset(["service", "worker"])

  name               = "${var.name}-start-${each.key}"
  description        = "What ECS needs to start a ${each.key} of Gristmill."
  assume_role_policy = data.aws_iam_policy_document.ecs["start"].json
}

resource "aws_iam_role_policy_attachment" "start" {
  for_each = aws_iam_role.start

  role       = each.value.name
  policy_arn = "arn:${data.aws_partition.here.partition}:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
}

resource "aws_iam_role_policy" "secrets" {
  name   = "secrets"
  role   = aws_iam_role.start["service"].id
  policy = templatefile("${path.module}/policies/secrets.json", { secrets = jsonencode(var.secret_arns) })
}

# The machines of the workers: what the agent of ECS on them needs. Tasks cannot take this role.

resource "aws_iam_role" "machine" {
  name               = "${var.name}-machine"
  description        = "The agent of ECS on the machines of the workers."
  assume_role_policy = data.aws_iam_policy_document.machine.json
}

resource "aws_iam_role_policy_attachment" "machine" {
  role       = aws_iam_role.machine.name
  policy_arn = "arn:${data.aws_partition.here.partition}:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "machine" {
  name = "${var.name}-machine"
  role = aws_iam_role.machine.name
}

data "aws_partition" "here" {}
data "aws_caller_identity" "here" {}
data "aws_region" "here" {}

# Only for tasks of this account: ECS serves others as well, and must not be led to act for them. It
# tells the region's tasks where a task takes its role (documented), and the account at its start too.
# EC2 tells neither of the roles of machines; who may pass such a role is IAM's matter.
data "aws_iam_policy_document" "ecs" {
  for_each = { task = true, start = false }

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }

    dynamic "condition" {
      for_each = each.value ? [1] : []

      content {
        test     = "ArnLike"
        variable = "aws:SourceArn"
        values   = ["arn:${data.aws_partition.here.partition}:ecs:${data.aws_region.here.name}:${local.account}:*"]
      }
    }
  }
}

data "aws_iam_policy_document" "machine" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}
