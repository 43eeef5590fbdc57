# One component of the service on Fargate: as many equal tasks as are wanted, any of which may be
# killed at any moment.

data "aws_region" "here" {}

resource "aws_cloudwatch_log_group" "service" {
  name              = "/${var.name}/${var.component}"
  retention_in_days = var.log_days
}

resource "aws_ecs_task_definition" "service" {
  family                   = "${var.name}-${var.component}"
  requires_compatibilities = ["FARGATE"]
  network_mode             = "awsvpc"
  cpu                      = var.cpu
  memory                   = var.memory_mib
  execution_role_arn       = var.start_role_arn
  task_role_arn            = var.role_arn

  ephemeral_storage {
    size_in_gib = var.disk_gib
  }

  runtime_platform {
    operating_system_family = "LINUX"
    cpu_architecture        = "X86_64"
  }

  container_definitions = jsonencode([{
    name        = var.component
    image       = var.image
    essential   = true
    command     = var.command
    stopTimeout = 60
    environment = [
      for name, value in merge({ AWS_DEFAULT_REGION = data.aws_region.here.name }, var.environment) :
      { name = name, value = value }
    ]
    secrets      = [for name, arn in var.secrets : { name = name, valueFrom = arn }]
    portMappings = [for port in var.port[*] : { containerPort = port, protocol = "tcp" }]
    linuxParameters = {
      capabilities = { drop = ["ALL"] }
    }
    healthCheck = {
      command     = ["CMD", "python", "/opt/healthy.py", "${var.health_url}"]
      interval    = 30
      timeout     = 10
      retries     = 3
      startPeriod = 120
    }
    logConfiguration = {
      logDriver = "awslogs"
      options = {
        awslogs-group         = aws_cloudwatch_log_group.service.name
        awslogs-region        = data.aws_region.here.name
        awslogs-stream-prefix = var.component
      }
    }
  }])
}

resource "aws_security_group" "service" {
  name        = "${var.name}-${var.component}"
  description = "What the ${var.component} of Gristmill may be asked, and may ask."
  vpc_id      = var.vpc_id
}

# AWS, the database, and what webhooks are sent to.
resource "aws_vpc_security_group_egress_rule" "all" {
  security_group_id = aws_security_group.service.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

resource "aws_ecs_service" "service" {
  name             = var.component
  cluster          = var.cluster_arn
  task_definition  = aws_ecs_task_definition.service.arn
  launch_type      = "FARGATE"
  platform_version = "LATEST"
  desired_count    = var.num_tasks

  deployment_minimum_healthy_percent = 50
  deployment_maximum_percent         = 200

  deployment_circuit_breaker {
    enable   = true
    rollback = true
  }

  network_configuration {
    subnets          = var.subnet_ids
    security_groups  = [aws_security_group.service.id]
    assign_public_ip = false
  }

  dynamic "load_balancer" {
    for_each = var.target_group_arn[*]

    content {
      target_group_arn = load_balancer.value
      container_name   = var.component
      container_port   = var.port
    }
  }
}
