output "security_group_id" {
  value = aws_security_group.service.id
}

output "service_name" {
  value = aws_ecs_service.service.name
}
