# The Queue: a queue of SQS for each Lane that all fleets have, with one for its dead letters, and
# those that Celery rings the control side through.
#
# Names and attributes are those that Gristmill itself makes queues with (queues/sqs_lanes.py and
# control/broker.py); a test compares the two. The Lanes of pools are made by Gristmill when the
# first worker of a pool listens, as their names follow from what that worker is.

data "aws_region" "here" {}

locals {
  # A Shard is put aside when it was received so often: a net under the nets, since every receive
  # counts, those of killed spot machines too.
  max_receives = 100
  retention_s  = 14 * 24 * 3600
  lanes        = toset(["bulk", "control"])
  tasks        = toset(["control", "ingest", "webhooks"])
}

resource "aws_sqs_queue" "dead" {
  for_each = local.lanes

  name                      = "${var.prefix}-${each.key}-dead"
  message_retention_seconds = local.retention_s
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue" "lane" {
  for_each = local.lanes

  name                       = "${var.prefix}-${each.key}"
  message_retention_seconds  = local.retention_s
  visibility_timeout_seconds = var.lease_s
  sqs_managed_sse_enabled    = true

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead[each.key].arn
    maxReceiveCount     = local.max_receives
  })
}

# What waits here are hints of a few bytes, which beat repeats every second.
resource "aws_sqs_queue" "task" {
  for_each = local.tasks

  name                       = "${var.prefix}-cp-${each.key}"
  message_retention_seconds  = 3600
  visibility_timeout_seconds = 300
  sqs_managed_sse_enabled    = true
}

locals {
  queues = merge(
    { for lane, queue in aws_sqs_queue.lane : lane => queue },
    { for lane, queue in aws_sqs_queue.dead : "${lane}-dead" => queue },
    { for task, queue in aws_sqs_queue.task : "cp-${task}" => queue },
  )
}

resource "aws_sqs_queue_policy" "tls_only" {
  for_each = local.queues

  queue_url = each.value.url

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "TlsOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "sqs:*"
      Resource  = each.value.arn
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}
