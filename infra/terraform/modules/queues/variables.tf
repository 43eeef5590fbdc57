variable "prefix" {
  description = "What the names of the queues begin with."
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,26}$", var.prefix))
    error_message = "The prefix is 26 letters, digits, '_' and '-' at most: names of queues end at 80."
  }
}

variable "lease_s" {
  description = "How long a Lease lasts without renewal, in seconds: GRISTMILL_LEASE_S of all processes."
  type        = number
  default     = 60
}
