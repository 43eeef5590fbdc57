# A whole fleet for one model. Copy this folder, put your names in, and `terraform init && terraform apply`.

terraform {
  required_version = ">= 1.11"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100, < 6.0"
    }
  }

  # State of your own: a bucket with versions, which locks by itself since Terraform 1.10.
  # backend "s3" {
  #   bucket       = "my-terraform-states"
  #   key          = "gristmill.tfstate"
  #   region       = "eu-central-1"
  #   use_lockfile = true
  # }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { Project = "gristmill" }
  }
}

variable "region" {
  type    = string
  default = "eu-central-1"
}

variable "bucket_name" {
  description = "No other bucket of the world may have it."
  type        = string
}

variable "certificate_arn" {
  description = "Certificate of AWS Certificate Manager for the name that callers use."
  type        = string
}

variable "registry" {
  description = "Where your images lie, such as ACCOUNT.dkr.ecr.REGION.amazonaws.com."
  type        = string
}

module "gristmill" {
  source = "../.."

  name            = "gristmill"
  bucket_name     = var.bucket_name
  certificate_arn = var.certificate_arn

  model         = "/models/Qwen3-8B"
  service_image = "${var.registry}/gristmill-service:0.1.0"
  worker_image  = "${var.registry}/gristmill-worker:0.1.0-cuda"
  # Control reads files for workers on GPUs, and has none itself.
  environment = { GRISTMILL_DTYPE = "bfloat16" }

  machine_types  = ["g6.xlarge", "g6.2xlarge", "g5.xlarge", "g5.2xlarge"]
  max_workers    = 8
  backlog_goal_s = 900

  alarm_topic_arns = [aws_sns_topic.alarms.arn]
}

resource "aws_sns_topic" "alarms" {
  name = "gristmill-alarms"
}

output "api_host" {
  value = module.gristmill.api_host
}

output "store_url" {
  value = module.gristmill.store_url
}

output "queue_url" {
  value = module.gristmill.queue_url
}

output "make_first_key" {
  value = module.gristmill.make_first_key
}

output "read_first_key" {
  value = module.gristmill.read_first_key
}
