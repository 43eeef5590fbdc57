# The load balancer before the API: TLS ends here.

resource "aws_security_group" "door" {
  name        = "${var.name}-door"
  description = "Who may call the API."
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "caller" {
  for_each = toset(var.caller_cidrs)

  security_group_id = aws_security_group.door.id
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "api" {
  security_group_id            = aws_security_group.door.id
  referenced_security_group_id = var.api_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
}

resource "aws_vpc_security_group_ingress_rule" "api" {
  security_group_id            = var.api_security_group_id
  referenced_security_group_id = aws_security_group.door.id
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
}

resource "aws_lb" "door" {
  name                       = var.name
  internal                   = var.internal
  load_balancer_type         = "application"
  subnets                    = var.subnet_ids
  security_groups            = [aws_security_group.door.id]
  drop_invalid_header_fields = true
  # Results are streamed, and a large file may be silent while it is checked.
  idle_timeout = 300
}

resource "aws_lb_target_group" "api" {
  name                 = "${var.name}-api"
  port                 = var.port
  protocol             = "HTTP"
  target_type          = "ip"
  vpc_id               = var.vpc_id
  deregistration_delay = 30

  health_check {
    path                = "/readyz"
    matcher             = "200"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }
}

resource "aws_lb_listener" "https" {
  load_balancer_arn = aws_lb.door.arn
  port              = 443
  protocol          = "HTTPS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.api.arn
  }
}
