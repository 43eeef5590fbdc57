output "ledger_url" {
  description = "What GRISTMILL_LEDGER is; the password comes by PGPASSWORD."
  value       = "postgresql://gristmill@${aws_db_instance.ledger.endpoint}/gristmill?sslmode=require"
}

output "identifier" {
  value = aws_db_instance.ledger.identifier
}
