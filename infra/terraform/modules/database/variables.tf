variable "name" {
  description = "What the names of all parts begin with."
  type        = string
}

variable "vpc_id" {
  type = string
}

variable "subnet_ids" {
  description = "Private subnets in two zones at least."
  type        = list(string)
}

variable "client_security_group_ids" {
  description = "The security groups whose members may connect, by what they are."
  type        = map(string)
}

variable "password_secret_arn" {
  description = "Secret of Secrets Manager that holds the password, and nothing else."
  type        = string
}

variable "engine_version" {
  description = "Version of PostgreSQL."
  type        = string
  default     = "17"
}

variable "instance_class" {
  type    = string
  default = "db.t4g.medium"
}

variable "max_storage_gib" {
  description = "How far the storage may grow by itself."
  type        = number
  default     = 200
}

variable "multi_az" {
  description = "Whether a second machine takes over when the first one is lost."
  type        = bool
  default     = true
}

variable "backup_days" {
  description = "How long backups are kept."
  type        = number
  default     = 14
}

variable "keep" {
  description = "Whether the database is protected: it cannot be deleted, and a snapshot stays of it."
  type        = bool
  default     = true
}
