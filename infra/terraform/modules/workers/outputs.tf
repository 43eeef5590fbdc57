output "capacity_provider_name" {
  value = aws_ecs_capacity_provider.machines.name
}

output "group_name" {
  description = "The Auto Scaling group."
  value       = aws_autoscaling_group.machines.name
}
