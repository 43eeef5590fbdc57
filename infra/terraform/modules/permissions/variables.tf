variable "name" {
  description = "What the names of all roles begin with."
  type        = string
}

variable "bucket_arn" {
  type = string
}

variable "bucket_prefix" {
  description = "What the keys of Gristmill begin with, without a slash at the end."
  type        = string
}

variable "queues_arn_prefix" {
  description = "What the ARN of each queue begins with."
  type        = string
}

variable "metrics_namespace" {
  description = "The namespace of CloudWatch that control publishes to."
  type        = string
}

variable "secret_arns" {
  description = "The secrets that API and control get when they start."
  type        = list(string)
}

variable "key_secret_arn" {
  description = "The secret that the first key of the API is written to."
  type        = string
}
