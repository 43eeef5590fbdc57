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
