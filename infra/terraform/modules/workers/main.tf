# The workers of one model: GPU spot machines in an Auto Scaling group, one worker on each.
#
# ECS places a worker where the capacity provider finds or buys a machine, and takes machines away
# that have none. What ends a worker (a spot notice, a rebalance, fewer wanted, a new version)
# reaches it as SIGTERM, and it saves everything within its grace.

data "aws_region" "here" {}

data "aws_ssm_parameter" "image" {
  count = var.machine_image_id == null ? 1 : 0

  name = "/aws/service/ecs/optimized-ami/amazon-linux-2023/gpu/recommended/image_id"
}

locals {
  image_id = var.machine_image_id != null ? var.machine_image_id : data.aws_ssm_parameter.image[0].value
  # ECS waits two minutes at most between SIGTERM and SIGKILL, which is what a spot notice leaves.
  stop_timeout_s = 115
  drain_grace_s  = 100
  # The defaults are for CPUs; and a worker that finds no GPU shall say so.
  of_gpu = {
    GRISTMILL_DEVICE                 = "cuda"
    GRISTMILL_MAX_NUM_SEQS           = "256"
    GRISTMILL_MAX_NUM_BATCHED_TOKENS = "8192"
  }
}

resource "aws_cloudwatch_log_group" "worker" {
  name              = "/${var.name}/worker"
  retention_in_days = var.log_days
}

resource "aws_security_group" "worker" {
  name        = "${var.name}-worker"
  description = "Workers call AWS, and nobody calls them."
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_egress_rule" "https" {
  security_group_id = aws_security_group.worker.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_launch_template" "machine" {
  name                   = "${var.name}-worker"
  image_id               = local.image_id
  update_default_version = true

  user_data = base64encode(<<-EOT
    #!/bin/bash
    cat >> /etc/ecs/ecs.config <<'CONFIG'
    ECS_CLUSTER=${var.cluster_name}
    ECS_ENABLE_GPU_SUPPORT=true
    ECS_ENABLE_SPOT_INSTANCE_DRAINING=true
    ECS_CONTAINER_STOP_TIMEOUT=${local.stop_timeout_s}s
    ECS_AWSVPC_BLOCK_IMDS=true
    CONFIG
  EOT
  )

  iam_instance_profile {
    arn = var.machine_profile_arn
  }

  # No task can take the machine's role: two hops are one too many.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = var.disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  network_interfaces {
    associate_public_ip_address = false
    security_groups             = [aws_security_group.worker.id]
    delete_on_termination       = true
  }

  tag_specifications {
    resource_type = "instance"
    tags          = { Name = "${var.name}-worker" }
  }
}

resource "aws_autoscaling_group" "machines" {
  name                  = "${var.name}-worker"
  min_size              = 0
  max_size              = var.max_workers
  vpc_zone_identifier   = var.subnet_ids
  capacity_rebalance    = true
  protect_from_scale_in = true
  force_delete          = true

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = 0
      on_demand_percentage_above_base_capacity = var.on_demand_percent
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.machine.id
        version            = aws_launch_template.machine.latest_version
      }

      dynamic "override" {
        for_each = var.machine_types

        content {
          instance_type = override.value
        }
      }
    }
  }

  tag {
    key                 = "AmazonECSManaged"
    value               = "true"
    propagate_at_launch = true
  }

  lifecycle {
    ignore_changes = [desired_capacity]
  }
}

resource "aws_ecs_capacity_provider" "machines" {
  name = "${var.name}-worker"

  auto_scaling_group_provider {
    auto_scaling_group_arn         = aws_autoscaling_group.machines.arn
    managed_termination_protection = "ENABLED"
    managed_draining               = "ENABLED"

    managed_scaling {
      status                    = "ENABLED"
      target_capacity           = 100
      minimum_scaling_step_size = 1
      maximum_scaling_step_size = max(1, var.max_workers)
      instance_warmup_period    = 120
    }
  }
}

resource "aws_ecs_task_definition" "worker" {
  family                   = "${var.name}-worker"
  requires_compatibilities = ["EC2"]
  network_mode             = "awsvpc"
  memory                   = var.memory_mib
  execution_role_arn       = var.start_role_arn
  task_role_arn            = var.role_arn

  container_definitions = jsonencode([{
    name        = "worker"
    image       = var.image
    essential   = true
    command     = ["worker", "--model", var.model, "--health", "127.0.0.1:8080"]
    stopTimeout = local.stop_timeout_s
    environment = [
      for name, value in merge(
        {
          AWS_DEFAULT_REGION      = data.aws_region.here.name
          GRISTMILL_DRAIN_GRACE_S = tostring(local.drain_grace_s)
          # The agent of ECS hears the notice and sends SIGTERM; the task cannot ask by itself.
          GRISTMILL_SPOT_NOTICE = "off"
        },
        var.num_gpus > 0 ? local.of_gpu : {},
        var.environment
      ) : { name = name, value = value }
    ]
    resourceRequirements = [
      for count in var.num_gpus > 0 ? [tostring(var.num_gpus)] : [] : { type = "GPU", value = count }
    ]
    linuxParameters = {
      capabilities = { drop = ["ALL"] }
    }
    healthCheck = {
      command     = ["CMD", "python", "/opt/healthy.py", "http://127.0.0.1:8080/livez"]
      interval    = 30
      timeout     = 10
      retries     = 3
      startPeriod = 300
    }
    logConfiguration = {
      logDriver = "awslogs"
      options = {
        awslogs-group         = aws_cloudwatch_log_group.worker.name
        awslogs-region        = data.aws_region.here.name
        awslogs-stream-prefix = "worker"
      }
    }
  }])
}

resource "aws_ecs_service" "worker" {
  name            = "worker"
  cluster         = var.cluster_arn
  task_definition = aws_ecs_task_definition.worker.arn
  desired_count   = 0

  # A worker that ends early costs nothing, so a new version need not wait for machines.
  deployment_minimum_healthy_percent = 0
  deployment_maximum_percent         = 100

  capacity_provider_strategy {
    capacity_provider = aws_ecs_capacity_provider.machines.name
    weight            = 1
  }

  network_configuration {
    subnets         = var.subnet_ids
    security_groups = [aws_security_group.worker.id]
  }

  placement_constraints {
    type = "distinctInstance"
  }

  lifecycle {
    ignore_changes = [desired_count]

    # Also what makes Terraform wait: ECS takes no provider that the cluster does not know yet.
    precondition {
      condition     = contains(var.cluster_providers, aws_ecs_capacity_provider.machines.name)
      error_message = "The cluster does not know ${aws_ecs_capacity_provider.machines.name}: name it among its capacity providers."
    }
  }
}
