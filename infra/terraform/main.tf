# A fleet on AWS: a Store, a Queue, a Ledger, the API and control on Fargate, workers on GPU spot machines.
#
# Each part is a module of its own, and can be had without the others. `parts` switches off what
# is there already, or is not wanted; then the variables below it say what takes its place.

locals {
  namespace  = var.metrics_namespace
  model_name = var.model_name != null ? var.model_name : basename(var.model)

  vpc_id             = var.parts.network ? module.network[0].vpc_id : var.vpc_id
  private_subnet_ids = var.parts.network ? module.network[0].private_subnet_ids : var.private_subnet_ids
  public_subnet_ids  = var.parts.network ? module.network[0].public_subnet_ids : var.public_subnet_ids

  ledger_url    = var.parts.database ? module.database[0].ledger_url : var.ledger_url
  secrets_names = { database-password = "GRISTMILL_LEDGER's password", key-pepper = "GRISTMILL_KEY_PEPPER" }

  # What every process of the fleet has to agree about.
  common = merge(var.environment, { GRISTMILL_STORE = module.bucket.store_url })
  queue  = { GRISTMILL_QUEUE = module.queues.queue_url, GRISTMILL_LEASE_S = tostring(var.lease_s) }
  ledger = { GRISTMILL_LEDGER = local.ledger_url }
}

module "bucket" {
  source = "./modules/bucket"

  name          = var.bucket_name
  prefix        = var.bucket_prefix
  force_destroy = !var.keep
}

module "queues" {
  source = "./modules/queues"

  prefix  = var.name
  lease_s = var.lease_s
}

module "secrets" {
  source = "./modules/secrets"

  prefix               = var.name
  names                = local.secrets_names
  recovery_window_days = var.keep ? 30 : 0
}

# Where the first key of the API goes, by a task that writes there and nowhere else (services.tf).
resource "aws_secretsmanager_secret" "first_key" {
  name                    = "${var.name}/first-key"
  description             = "The first key of the API."
  recovery_window_in_days = var.keep ? 30 : 0
}

module "permissions" {
  source = "./modules/permissions"

  name              = var.name
  bucket_arn        = module.bucket.arn
  bucket_prefix     = module.bucket.prefix
  queues_arn_prefix = module.queues.arn_prefix
  metrics_namespace = local.namespace
  secret_arns       = values(module.secrets.arns)
  key_secret_arn    = aws_secretsmanager_secret.first_key.arn
}

module "network" {
  source = "./modules/network"
  count  = var.parts.network ? 1 : 0

  name      = var.name
  cidr      = var.cidr
  num_zones = var.num_zones
}

module "database" {
  source = "./modules/database"
  count  = var.parts.database ? 1 : 0

  name                = var.name
  vpc_id              = local.vpc_id
  subnet_ids          = local.private_subnet_ids
  password_secret_arn = module.secrets.arns["database-password"]
  instance_class      = var.database_class
  multi_az            = var.keep
  keep                = var.keep

  client_security_group_ids = var.parts.services ? {
    api     = module.api[0].security_group_id
    control = module.control[0].security_group_id
  } : {}
}

resource "aws_ecs_cluster" "fleet" {
  count = var.parts.services || var.parts.workers ? 1 : 0

  name = var.name
}

resource "aws_ecs_cluster_capacity_providers" "fleet" {
  count = var.parts.services || var.parts.workers ? 1 : 0

  cluster_name = aws_ecs_cluster.fleet[0].name
  # Not module.workers[*]: that would wait for all of the module, a part of which waits for this.
  capacity_providers = concat(["FARGATE"], var.parts.workers ? [module.workers[0].capacity_provider_name] : [])
}
