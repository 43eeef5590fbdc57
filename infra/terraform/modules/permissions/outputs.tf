output "role_arns" {
  description = "The role of each component: api, control, worker, and keys, which makes the first key."
  value       = { for component, role in aws_iam_role.component : component => role.arn }
}

output "start_role_arns" {
  description = "What ECS starts tasks with: service (API and control), worker."
  value       = { for kind, role in aws_iam_role.start : kind => role.arn }
}

output "machine_profile_arn" {
  value = aws_iam_instance_profile.machine.arn
}
