output "store_url" {
  description = "GRISTMILL_STORE"
  value       = module.bucket.store_url
}

output "queue_url" {
  description = "GRISTMILL_QUEUE and GRISTMILL_BROKER"
  value       = module.queues.queue_url
}

output "ledger_url" {
  description = "GRISTMILL_LEDGER; the password comes by PGPASSWORD."
  value       = local.ledger_url
}

output "secret_arns" {
  description = "Where the password of the database and the pepper of the keys lie."
  value       = module.secrets.arns
}

output "role_arns" {
  description = "The roles of api, control and worker."
  value       = module.permissions.role_arns
}

output "metrics_namespace" {
  description = "GRISTMILL_CLOUDWATCH_NAMESPACE of control"
  value       = local.namespace
}

output "api_host" {
  description = "What the name of the certificate shall point to."
  value       = one(module.front_door[*].dns_name)
}

output "worker_group_name" {
  description = "The Auto Scaling group of the workers."
  value       = one(module.workers[*].group_name)
}

output "make_first_key" {
  description = "The command that makes the first key of the API, to be run once."
  value = var.parts.services ? join(" ", [
    "aws ecs run-task --launch-type FARGATE",
    "--cluster ${aws_ecs_cluster.fleet[0].name}",
    "--task-definition ${aws_ecs_task_definition.first_key[0].family}",
    "--network-configuration",
    "'awsvpcConfiguration={subnets=[${join(",", local.private_subnet_ids)}],securityGroups=[${module.api[0].security_group_id}]}'",
  ]) : null
}

output "read_first_key" {
  description = "The command that shows it."
  value       = "aws secretsmanager get-secret-value --query SecretString --output text --secret-id ${aws_secretsmanager_secret.first_key.name}"
}
