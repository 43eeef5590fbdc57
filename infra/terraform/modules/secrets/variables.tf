variable "prefix" {
  description = "What the names of the secrets begin with, before a slash."
  type        = string
}

variable "names" {
  description = "The secrets by name, and what each is for."
  type        = map(string)
}

variable "recovery_window_days" {
  description = "How long a deleted secret can be had back; 0 is not at all."
  type        = number
  default     = 30
}
