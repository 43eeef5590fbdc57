# What must stay secret, in Secrets Manager: made at random, and seen neither by whoever applies this nor in
# the state of Terraform, since the values are ephemeral and write-only.

ephemeral "aws_secretsmanager_random_password" "value" {
  for_each = var.names

  password_length     = 40
  exclude_punctuation = true
}

resource "aws_secretsmanager_secret" "secret" {
  for_each = var.names

  name                    = "${var.prefix}/${each.key}"
  description             = each.value
  recovery_window_in_days = var.recovery_window_days
}

resource "aws_secretsmanager_secret_version" "value" {
  for_each = var.names

  secret_id                = aws_secretsmanager_secret.secret[each.key].id
  secret_string_wo         = ephemeral.aws_secretsmanager_random_password.value[each.key].random_password
  secret_string_wo_version = 1
}
