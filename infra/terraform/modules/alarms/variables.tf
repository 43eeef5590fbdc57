variable "name" {
  description = "What the names of all alarms begin with."
  type        = string
}

variable "topic_arns" {
  description = "Topics of SNS that are told; none, and the alarms are seen in CloudWatch only."
  type        = list(string)
  default     = []
}

variable "metrics_namespace" {
  type = string
}

variable "model_name" {
  description = "What batches call the model."
  type        = string
}

variable "backlog_limit_s" {
  description = "How long the backlog may be for an hour, in seconds."
  type        = number
  default     = 14400
}

variable "control_queue_name" {
  description = "The queue of Bells."
  type        = string
}

variable "dead_queue_names" {
  description = "The queues of dead letters, by Lane."
  type        = map(string)
}

variable "database_identifiers" {
  description = "The database, in a list of one or none."
  type        = list(string)
  default     = []
}

variable "load_balancer_arn_suffixes" {
  description = "The load balancer, in a list of one or none."
  type        = list(string)
  default     = []
}
