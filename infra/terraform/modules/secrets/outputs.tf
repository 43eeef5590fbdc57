output "arns" {
  description = "The ARN of each secret by name, once it has a value."
  value       = { for name, version in aws_secretsmanager_secret_version.value : name => version.arn }
}
