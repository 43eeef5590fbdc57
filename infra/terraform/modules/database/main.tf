# The Ledger: PostgreSQL, encrypted, in private subnets, reached over TLS by the API and control alone.

ephemeral "aws_secretsmanager_secret_version" "password" {
  secret_id = var.password_secret_arn
}

resource "aws_db_subnet_group" "ledger" {
  name       = "${var.name}-ledger"
  subnet_ids = var.subnet_ids
}

resource "aws_security_group" "ledger" {
  name        = "${var.name}-ledger"
  description = "Who may speak to the database of the ledger."
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "client" {
  for_each = var.client_security_group_ids

  security_group_id            = aws_security_group.ledger.id
  referenced_security_group_id = each.value
  description                  = each.key
  ip_protocol                  = "tcp"
  from_port                    = 5432
  to_port                      = 5432
}

resource "aws_db_parameter_group" "ledger" {
  name   = "${var.name}-ledger"
  family = "postgres${split(".", var.engine_version)[0]}"

  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }
}

resource "aws_db_instance" "ledger" {
  identifier     = "${var.name}-ledger"
  engine         = "postgres"
  engine_version = var.engine_version
  instance_class = var.instance_class

  db_name             = "gristmill"
  username            = "gristmill"
  password_wo         = ephemeral.aws_secretsmanager_secret_version.password.secret_string
  password_wo_version = 1

  allocated_storage     = 20
  max_allocated_storage = var.max_storage_gib
  storage_type          = "gp3"
  storage_encrypted     = true

  db_subnet_group_name   = aws_db_subnet_group.ledger.name
  vpc_security_group_ids = [aws_security_group.ledger.id]
  parameter_group_name   = aws_db_parameter_group.ledger.name
  publicly_accessible    = false
  multi_az               = var.multi_az

  backup_retention_period      = var.backup_days
  copy_tags_to_snapshot        = true
  auto_minor_version_upgrade   = true
  performance_insights_enabled = true
  deletion_protection          = var.keep
  skip_final_snapshot          = !var.keep
  final_snapshot_identifier    = var.keep ? "${var.name}-ledger-final" : null
}
