# How many workers there are: from the backlog that control publishes to CloudWatch, down to none.
#
#   wake    work waits and no worker is alive: one more, or some for a large backlog
#   grow    the backlog is longer than its goal: half as many again, or twice as many
#   shrink  it was far below the goal for ten minutes: half of them
#   rest    nothing is left to do, sent or not, for some minutes: none
#
# BacklogSeconds is how long the workers that load or take work need for what is left; where there are
# none, how long one needs that is as fast as those of the last day. So the alarms of wake and grow never go off together.

locals {
  dimensions = { Model = var.model_name }
  metrics    = { backlog = "BacklogSeconds", tokens = "BacklogTokens", workers = "Workers" }

  alarms = {
    wake = {
      expression  = "IF(workers < 1 AND tokens > 0, backlog, 0)"
      comparison  = "GreaterThanThreshold"
      threshold   = 0
      num_minutes = 1
    }
    grow = {
      expression  = "IF(workers > 0, backlog, 0)"
      comparison  = "GreaterThanOrEqualToThreshold"
      threshold   = var.backlog_goal_s
      num_minutes = 2
    }
    shrink = {
      expression  = "IF(workers > 1 AND tokens > 0, backlog, ${var.backlog_goal_s})"
      comparison  = "LessThanThreshold"
      threshold   = var.backlog_goal_s / 4
      num_minutes = 10
    }
    rest = {
      expression  = "tokens * 1"
      comparison  = "LessThanOrEqualToThreshold"
      threshold   = 0
      num_minutes = var.rest_after_minutes
    }
  }

  # Bounds are told from the threshold of the alarm.
  steps = {
    # So many more, never so many in all: workers that are replaced, or not heard, are not ended by it.
    wake = {
      adjustment = "ChangeInCapacity"
      # Until a machine is there and its worker says that it loads.
      cooldown_s = 600
      steps = [
        { from = 0, to = var.backlog_goal_s, by = min(1, var.max_workers) },
        { from = var.backlog_goal_s, to = 4 * var.backlog_goal_s, by = min(2, var.max_workers) },
        { from = 4 * var.backlog_goal_s, to = null, by = min(4, var.max_workers) },
      ]
    }
    grow = {
      adjustment = "PercentChangeInCapacity"
      # A machine and a model take some minutes until they show in the backlog.
      cooldown_s = 300
      steps = [
        { from = 0, to = var.backlog_goal_s, by = 50 },
        { from = var.backlog_goal_s, to = null, by = 100 },
      ]
    }
    shrink = {
      adjustment = "PercentChangeInCapacity"
      cooldown_s = 600
      steps      = [{ from = null, to = 0, by = -50 }]
    }
    rest = {
      adjustment = "ExactCapacity"
      cooldown_s = 60
      steps      = [{ from = null, to = 0, by = 0 }]
    }
  }
}

resource "aws_appautoscaling_target" "workers" {
  service_namespace  = "ecs"
  resource_id        = "service/${var.cluster_name}/${aws_ecs_service.worker.name}"
  scalable_dimension = "ecs:service:DesiredCount"
  min_capacity       = 0
  max_capacity       = var.max_workers
}

resource "aws_appautoscaling_policy" "workers" {
  for_each = local.steps

  name               = each.key
  policy_type        = "StepScaling"
  service_namespace  = aws_appautoscaling_target.workers.service_namespace
  resource_id        = aws_appautoscaling_target.workers.resource_id
  scalable_dimension = aws_appautoscaling_target.workers.scalable_dimension

  step_scaling_policy_configuration {
    adjustment_type          = each.value.adjustment
    cooldown                 = each.value.cooldown_s
    metric_aggregation_type  = "Maximum"
    min_adjustment_magnitude = each.value.adjustment == "PercentChangeInCapacity" ? 1 : null

    dynamic "step_adjustment" {
      for_each = each.value.steps

      content {
        metric_interval_lower_bound = step_adjustment.value.from
        metric_interval_upper_bound = step_adjustment.value.to
        scaling_adjustment          = step_adjustment.value.by
      }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "workers" {
  for_each = local.alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = "Tells the Auto Scaling of the workers of ${var.model_name} to ${each.key}."
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  evaluation_periods  = each.value.num_minutes
  # A control side that says nothing moves no machine.
  treat_missing_data = "notBreaching"
  alarm_actions      = [aws_appautoscaling_policy.workers[each.key].arn]

  metric_query {
    id          = "decides"
    expression  = each.value.expression
    label       = each.key
    return_data = true
  }

  dynamic "metric_query" {
    for_each = local.metrics

    content {
      id = metric_query.key

      metric {
        namespace   = var.metrics_namespace
        metric_name = metric_query.value
        dimensions  = local.dimensions
        period      = 60
        stat        = "Maximum"
      }
    }
  }
}
