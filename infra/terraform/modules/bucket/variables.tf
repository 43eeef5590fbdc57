variable "name" {
  description = "Name of the bucket; no other bucket of the world may have it."
  type        = string
}

variable "prefix" {
  description = "What the keys of Gristmill begin with, without a slash at the end."
  type        = string
  default     = "gristmill"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.prefix))
    error_message = "The prefix is one or more names of letters, digits, '_' and '-', with slashes between them."
  }
}

variable "force_destroy" {
  description = "Whether `terraform destroy` takes the bucket away with all that lies in it."
  type        = bool
  default     = false
}
