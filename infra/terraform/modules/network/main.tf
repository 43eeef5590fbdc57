# A network of its own: public subnets for the load balancer, private ones for everything else.
#
# S3 is reached through a gateway that costs nothing; SQS and the rest of AWS through one NAT.

data "aws_availability_zones" "here" {
  state = "available"
}

locals {
  zones = slice(data.aws_availability_zones.here.names, 0, var.num_zones)
}

resource "aws_vpc" "fleet" {
  cidr_block           = var.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true

  tags = { Name = var.name }
}

# Nothing may use what a VPC has by default: it lets everything through.
resource "aws_default_security_group" "unused" {
  vpc_id = aws_vpc.fleet.id
}

resource "aws_internet_gateway" "fleet" {
  vpc_id = aws_vpc.fleet.id

  tags = { Name = var.name }
}

resource "aws_subnet" "public" {
  count = var.num_zones

  vpc_id            = aws_vpc.fleet.id
  availability_zone = local.zones[count.index]
  cidr_block        = cidrsubnet(var.cidr, 4, count.index)

  tags = { Name = "${var.name}-public-${count.index}" }
}

resource "aws_subnet" "private" {
  count = var.num_zones

  vpc_id            = aws_vpc.fleet.id
  availability_zone = local.zones[count.index]
  cidr_block        = cidrsubnet(var.cidr, 4, 8 + count.index)

  tags = { Name = "${var.name}-private-${count.index}" }
}

resource "aws_eip" "nat" {
  domain = "vpc"

  tags = { Name = "${var.name}-nat" }
}

resource "aws_nat_gateway" "fleet" {
  allocation_id = aws_eip.nat.id
  subnet_id     = aws_subnet.public[0].id

  tags = { Name = var.name }

  depends_on = [aws_internet_gateway.fleet]
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.fleet.id

  tags = { Name = "${var.name}-public" }
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.fleet.id
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.fleet.id

  tags = { Name = "${var.name}-private" }
}

resource "aws_route" "nat" {
  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.fleet.id
}

resource "aws_route_table_association" "public" {
  count = var.num_zones

  subnet_id      = aws_subnet.public[count.index].id
  route_table_id = aws_route_table.public.id
}

resource "aws_route_table_association" "private" {
  count = var.num_zones

  subnet_id      = aws_subnet.private[count.index].id
  route_table_id = aws_route_table.private.id
}

data "aws_region" "here" {}

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.fleet.id
  service_name      = "com.amazonaws.${data.aws_region.here.name}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.private.id]

  tags = { Name = "${var.name}-s3" }
}
