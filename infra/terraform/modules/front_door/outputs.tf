output "target_group_arn" {
  description = "Once the listener forwards to it."
  value       = aws_lb_listener.https.default_action[0].target_group_arn
}

output "dns_name" {
  description = "What the name of the certificate shall point to."
  value       = aws_lb.door.dns_name
}

output "arn_suffix" {
  value = aws_lb.door.arn_suffix
}
