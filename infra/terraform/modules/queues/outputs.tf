output "prefix" {
  value = var.prefix
}

output "queue_url" {
  description = "What GRISTMILL_QUEUE and GRISTMILL_BROKER are: Celery's queues have names of their own."
  value       = "sqs://${var.prefix}?region=${data.aws_region.here.name}"
}

output "arn_prefix" {
  description = "What the ARN of each queue begins with."
  value       = trimsuffix(aws_sqs_queue.lane["bulk"].arn, "-bulk")
}

output "lane_names" {
  description = "The name of the queue of each Lane."
  value       = { for lane, queue in aws_sqs_queue.lane : lane => queue.name }
}

output "dead_names" {
  description = "The name of the queue for the dead letters of each Lane."
  value       = { for lane, queue in aws_sqs_queue.dead : lane => queue.name }
}
