output "name" {
  value = aws_s3_bucket.store.id
}

output "arn" {
  value = aws_s3_bucket.store.arn
}

output "prefix" {
  value = var.prefix
}

output "store_url" {
  description = "What GRISTMILL_STORE is."
  value       = "s3://${aws_s3_bucket.store.id}/${var.prefix}?region=${aws_s3_bucket.store.region}"
}
