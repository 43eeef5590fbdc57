variable "name" {
  description = "What the names of all parts begin with."
  type        = string
}

variable "component" {
  description = "What runs here: api or control."
  type        = string
}

variable "image" {
  type = string
}

variable "command" {
  description = "The words after `gristmill`."
  type        = list(string)
}

variable "environment" {
  type    = map(string)
  default = {}
}

variable "secrets" {
  description = "Variables of the environment by name, each with the ARN of the secret that is its value."
  type        = map(string)
  default     = {}
}

variable "health_url" {
  description = "Answers with 200 inside the task while it lives."
  type        = string
}

variable "port" {
  description = "What the load balancer asks; null where there is none."
  type        = number
  default     = null
}

variable "target_group_arn" {
  type    = string
  default = null
}

variable "cpu" {
  description = "In 1,024ths of a core."
  type        = number
  default     = 1024
}

variable "memory_mib" {
  type    = number
  default = 2048
}

variable "disk_gib" {
  description = "From 21 to 200: Fargate keeps the image on it twice, as it was pulled and unpacked."
  type        = number
  default     = 21
}

variable "num_tasks" {
  type    = number
  default = 2
}

variable "cluster_arn" {
  type = string
}

variable "role_arn" {
  description = "What its code may do."
  type        = string
}

variable "start_role_arn" {
  description = "What ECS starts it with."
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
