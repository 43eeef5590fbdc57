# The three processes: `gristmill api` behind a load balancer, `gristmill control`, `gristmill worker`.

locals {
  api_port = 8000
  secrets = {
    GRISTMILL_KEY_PEPPER = module.secrets.arns["key-pepper"]
    PGPASSWORD           = module.secrets.arns["database-password"]
  }

  # The load balancer's addresses lie in it: only from there is the address of a caller believed.
  cidr = var.parts.network ? var.cidr : one(data.aws_vpc.given[*].cidr_block)
}

data "aws_vpc" "given" {
  count = var.parts.services && !var.parts.network ? 1 : 0

  id = var.vpc_id
}

module "front_door" {
  source = "./modules/front_door"
  count  = var.parts.services ? 1 : 0

  name                  = var.name
  vpc_id                = local.vpc_id
  subnet_ids            = var.public ? local.public_subnet_ids : local.private_subnet_ids
  internal              = !var.public
  certificate_arn       = var.certificate_arn
  caller_cidrs          = var.caller_cidrs
  api_security_group_id = module.api[0].security_group_id
  port                  = local.api_port
}

module "api" {
  source = "./modules/service"
  count  = var.parts.services ? 1 : 0

  name             = var.name
  component        = "api"
  image            = var.service_image
  command          = ["api", "--host", "0.0.0.0", "--port", tostring(local.api_port)]
  environment      = merge(local.common, local.ledger, { FORWARDED_ALLOW_IPS = local.cidr })
  secrets          = local.secrets
  health_url       = "http://127.0.0.1:${local.api_port}/healthz"
  port             = local.api_port
  target_group_arn = module.front_door[0].target_group_arn
  disk_gib         = var.service_disk_gib
  num_tasks        = var.num_api_tasks
  cluster_arn      = aws_ecs_cluster.fleet[0].arn
  role_arn         = module.permissions.role_arns["api"]
  start_role_arn   = module.permissions.start_role_arns["service"]
  vpc_id           = local.vpc_id
  subnet_ids       = local.private_subnet_ids
}

module "control" {
  source = "./modules/service"
  count  = var.parts.services ? 1 : 0

  name       = var.name
  component  = "control"
  image      = var.service_image
  command    = ["control", "--model", var.model, "--health", "127.0.0.1:8080"]
  health_url = "http://127.0.0.1:8080/livez"
  secrets    = local.secrets
  environment = merge(local.common, local.queue, local.ledger, {
    GRISTMILL_BROKER               = module.queues.queue_url
    GRISTMILL_CLOUDWATCH_NAMESPACE = local.namespace
  })
  memory_mib     = 4096
  disk_gib       = var.service_disk_gib
  num_tasks      = var.num_control_tasks
  cluster_arn    = aws_ecs_cluster.fleet[0].arn
  role_arn       = module.permissions.role_arns["control"]
  start_role_arn = module.permissions.start_role_arns["service"]
  vpc_id         = local.vpc_id
  subnet_ids     = local.private_subnet_ids
}

module "workers" {
  source = "./modules/workers"
  count  = var.parts.workers ? 1 : 0

  name                = var.name
  image               = var.worker_image
  model               = var.model
  model_name          = local.model_name
  environment         = merge(local.common, local.queue)
  machine_types       = var.machine_types
  num_gpus            = var.num_gpus
  memory_mib          = var.worker_memory_mib
  machine_image_id    = var.machine_image_id
  max_workers         = var.max_workers
  backlog_goal_s      = var.backlog_goal_s
  metrics_namespace   = local.namespace
  cluster_name        = aws_ecs_cluster.fleet[0].name
  cluster_arn         = aws_ecs_cluster.fleet[0].arn
  cluster_providers   = aws_ecs_cluster_capacity_providers.fleet[0].capacity_providers
  role_arn            = module.permissions.role_arns["worker"]
  start_role_arn      = module.permissions.start_role_arns["worker"]
  machine_profile_arn = module.permissions.machine_profile_arn
  vpc_id              = local.vpc_id
  subnet_ids          = local.private_subnet_ids
}

module "alarms" {
  source = "./modules/alarms"
  count  = var.parts.alarms ? 1 : 0

  name                       = var.name
  topic_arns                 = var.alarm_topic_arns
  metrics_namespace          = local.namespace
  model_name                 = local.model_name
  control_queue_name         = module.queues.lane_names["control"]
  dead_queue_names           = module.queues.dead_names
  database_identifiers       = module.database[*].identifier
  load_balancer_arn_suffixes = module.front_door[*].arn_suffix
}

# Not a service: run once, it makes the first key and puts it where only an operator reads it. What it
# prints, and so what its log has, is the public part of the key.
resource "aws_ecs_task_definition" "first_key" {
  count = var.parts.services ? 1 : 0

  family                   = "${var.name}-first-key"
  requires_compatibilities = ["FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = 512
  memory                   = 1024
  execution_role_arn       = module.permissions.start_role_arns["service"]
  task_role_arn            = module.permissions.role_arns["keys"]

  container_definitions = jsonencode([{
    name    = "first-key"
    image   = var.service_image
    command = ["keys", "create", "--name", "first", "--scope", "admin", "--to-secret", aws_secretsmanager_secret.first_key.arn]
    environment = [
      for name, value in merge({ AWS_DEFAULT_REGION = data.aws_region.here.name }, local.ledger) :
      { name = name, value = value }
    ]
    secrets = [for name, arn in local.secrets : { name = name, valueFrom = arn }]
    linuxParameters = {
      capabilities = { drop = ["ALL"] }
    }
    logConfiguration = {
      logDriver = "awslogs"
      options = {
        awslogs-group         = "/${var.name}/api"
        awslogs-region        = data.aws_region.here.name
        awslogs-stream-prefix = "first-key"
      }
    }
  }])
}

data "aws_region" "here" {}
