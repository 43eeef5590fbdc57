variable "name" {
  description = "What the names of all parts begin with; another one for each model."
  type        = string
}

variable "image" {
  description = "The image of a worker, with the model in it."
  type        = string
}

variable "model" {
  description = "What `gristmill worker --model` gets."
  type        = string
}

variable "model_name" {
  description = "What batches call the model: the dimension of its metrics."
  type        = string
}

variable "environment" {
  description = "GRISTMILL_QUEUE, GRISTMILL_STORE and what else is set."
  type        = map(string)
}

variable "machine_types" {
  description = "Kinds of machines, whose GPUs know bfloat16; the more, the easier a spot machine is found."
  type        = list(string)
  default     = ["g6.xlarge", "g6.2xlarge", "g5.xlarge", "g5.2xlarge"]
}

variable "num_gpus" {
  description = "GPUs of one worker; 0 for machines without."
  type        = number
  default     = 1
}

variable "memory_mib" {
  description = "Main memory of a worker, in MiB: less than its machine has, as the system needs some."
  type        = number
  default     = 12288
}

variable "disk_gib" {
  type    = number
  default = 100
}

variable "machine_image_id" {
  description = "Image of the machines; null is what AWS recommends for ECS with GPUs."
  type        = string
  default     = null
}

variable "on_demand_percent" {
  description = "Share of machines that are not spot."
  type        = number
  default     = 0
}

variable "max_workers" {
  type    = number
  default = 8
}

variable "backlog_goal_s" {
  description = "How long the work that is there shall take at most, in seconds: longer, and workers are added."
  type        = number
  default     = 900
}

variable "rest_after_minutes" {
  description = "With nothing to do for so long, all workers end."
  type        = number
  default     = 5
}

variable "metrics_namespace" {
  description = "The namespace of CloudWatch that control publishes to."
  type        = string
}

variable "cluster_name" {
  type = string
}

variable "cluster_arn" {
  type = string
}

variable "cluster_providers" {
  description = "The capacity providers that the cluster knows, that of these workers with them."
  type        = set(string)
}

variable "role_arn" {
  description = "What a worker's code may do."
  type        = string
}

variable "start_role_arn" {
  description = "What ECS starts it with."
  type        = string
}

variable "machine_profile_arn" {
  description = "What the agent of ECS on the machines may do."
  type        = string
}

variable "vpc_id" {
  type = string
}

variable "subnet_ids" {
  type = list(string)
}

variable "log_days" {
  type    = number
  default = 30
}
