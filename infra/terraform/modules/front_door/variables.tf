variable "name" {
  description = "Name of the load balancer."
  type        = string

  validation {
    condition     = length(var.name) <= 28
    error_message = "28 characters at most: the target group adds four, and ends at 32."
  }
}

variable "vpc_id" {
  type = string
}

variable "subnet_ids" {
  description = "Public subnets, or private ones for callers inside the network alone."
  type        = list(string)
}

variable "internal" {
  description = "Whether it has no address on the Internet."
  type        = bool
  default     = true
}

variable "certificate_arn" {
  description = "Certificate of AWS Certificate Manager for the name that callers use."
  type        = string
}

variable "caller_cidrs" {
  description = "Networks that may call the API."
  type        = list(string)
}

variable "api_security_group_id" {
  type = string
}

variable "port" {
  description = "Where the API listens."
  type        = number
}
