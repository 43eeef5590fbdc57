# What somebody should look at: work nobody does, a control side that says nothing, Shards put
# aside, and a database that runs full.

locals {
  to = var.topic_arns

  of_model = { Model = var.model_name }
}

# Control publishes every 30 s: where nothing comes it is dead, or may not publish.
resource "aws_cloudwatch_metric_alarm" "control_silent" {
  alarm_name          = "${var.name}-control-silent"
  alarm_description   = "No control process has published a backlog for ten minutes: none runs, or none may."
  namespace           = var.metrics_namespace
  metric_name         = "BacklogTokens"
  dimensions          = local.of_model
  statistic           = "SampleCount"
  period              = 300
  evaluation_periods  = 2
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  treat_missing_data  = "breaching"
  alarm_actions       = local.to
  ok_actions          = local.to
}

resource "aws_cloudwatch_metric_alarm" "stranded" {
  alarm_name          = "${var.name}-stranded"
  alarm_description   = "Work has waited for half an hour, and no worker is alive: no machine to be had, or workers that do not start."
  evaluation_periods  = 30
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.to
  ok_actions          = local.to

  metric_query {
    id          = "stranded"
    expression  = "IF(workers < 1, tokens, 0)"
    label       = "tokens without a worker"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = { tokens = "BacklogTokens", workers = "Workers" }

    content {
      id = metric_query.key

      metric {
        namespace   = var.metrics_namespace
        metric_name = metric_query.value
        dimensions  = local.of_model
        period      = 60
        stat        = "Maximum"
      }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "late" {
  alarm_name          = "${var.name}-late"
  alarm_description   = "For an hour the backlog has been longer than ${var.backlog_limit_s} s, with the workers that there are."
  namespace           = var.metrics_namespace
  metric_name         = "BacklogSeconds"
  dimensions          = local.of_model
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 12
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.backlog_limit_s
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.to
  ok_actions          = local.to
}

resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  for_each = var.dead_queue_names

  alarm_name          = "${var.name}-dead-letters-${each.key}"
  alarm_description   = "A message of the Lane ${each.key} was put aside: a damaged Shard, or one received a hundred times."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = each.value }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.to
}

resource "aws_cloudwatch_metric_alarm" "bells_wait" {
  alarm_name          = "${var.name}-bells-wait"
  alarm_description   = "Workers ring, and no control process hears it: results are accepted late, by the sweep."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = var.control_queue_name }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 2
  comparison_operator = "GreaterThanThreshold"
  threshold           = 300
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.to
  ok_actions          = local.to
}

locals {
  database_alarms = {
    storage = {
      metric     = "FreeStorageSpace"
      comparison = "LessThanThreshold"
      threshold  = 2 * pow(1024, 3)
      why        = "The database has less than 2 GiB left, and cannot grow fast enough."
    }
    cpu = {
      metric     = "CPUUtilization"
      comparison = "GreaterThanThreshold"
      threshold  = 85
      why        = "The database has been busy for 15 minutes: take a larger machine."
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "database" {
  for_each = length(var.database_identifiers) == 0 ? {} : local.database_alarms

  alarm_name          = "${var.name}-database-${each.key}"
  alarm_description   = each.value.why
  namespace           = "AWS/RDS"
  metric_name         = each.value.metric
  dimensions          = { DBInstanceIdentifier = var.database_identifiers[0] }
  statistic           = "Average"
  period              = 300
  evaluation_periods  = 3
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  alarm_actions       = local.to
  ok_actions          = local.to
}

resource "aws_cloudwatch_metric_alarm" "api_errors" {
  count = length(var.load_balancer_arn_suffixes)

  alarm_name          = "${var.name}-api-errors"
  alarm_description   = "The API has failed more than five times in five minutes."
  namespace           = "AWS/ApplicationELB"
  metric_name         = "HTTPCode_Target_5XX_Count"
  dimensions          = { LoadBalancer = var.load_balancer_arn_suffixes[count.index] }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 5
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.to
  ok_actions          = local.to
}
