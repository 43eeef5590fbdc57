variable "name" {
  description = "What the names of all parts begin with."
  type        = string
}

variable "cidr" {
  description = "Addresses of the network."
  type        = string
  default     = "10.42.0.0/16"
}

variable "num_zones" {
  description = "Availability zones; spot machines are found more easily in several."
  type        = number
  default     = 3

  validation {
    condition     = var.num_zones >= 2 && var.num_zones <= 6
    error_message = "Two zones at least, as the database wants, and six at most."
  }
}
