variable "name" {
  description = "What the names of all parts begin with."
  type        = string
  default     = "gristmill"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,23}$", var.name))
    error_message = "The name is up to 24 small letters, digits and '-', the first a letter."
  }
}

variable "parts" {
  description = "What is made beside the bucket, the queues, the secrets and the roles, which all fleets have."
  type = object({
    network  = optional(bool, true)
    database = optional(bool, true)
    services = optional(bool, true)
    workers  = optional(bool, true)
    alarms   = optional(bool, true)
  })
  default = {}
}

variable "keep" {
  description = "Whether what holds data is protected: database and bucket are not removed, two zones hold the database. False is for trials."
  type        = bool
  default     = true
}

# The model and the images

variable "model" {
  description = "What --model gets in control and in the workers: the same in both images, such as /models/NAME."
  type        = string
}

variable "model_name" {
  description = "What batches call the model; null is the last part of `model`."
  type        = string
  default     = null
}

variable "service_image" {
  description = "Image of the API and control, with the model in it: control tells by the weights which model it is, and loads none."
  type        = string
  default     = null

  validation {
    condition     = !var.parts.services || var.service_image != null
    error_message = "parts.services is on: say which image, as service_image, or switch it off."
  }
}

variable "worker_image" {
  description = "Image of the workers, with the model in it."
  type        = string
  default     = null

  validation {
    condition     = !var.parts.workers || var.worker_image != null
    error_message = "parts.workers is on: say which image, as worker_image, or switch it off."
  }
}

variable "environment" {
  description = "Settings that all processes have to agree about, such as GRISTMILL_DTYPE."
  type        = map(string)
  default     = {}
}

# Store, Queue, Ledger

variable "bucket_name" {
  description = "Name of the bucket; no other bucket of the world may have it."
  type        = string
}

variable "bucket_prefix" {
  description = "What the keys of Gristmill begin with, without a slash at the end."
  type        = string
  default     = "gristmill"
}

variable "lease_s" {
  description = "How long a Lease lasts without renewal, in seconds."
  type        = number
  default     = 60
}

variable "database_class" {
  type    = string
  default = "db.t4g.medium"
}

variable "ledger_url" {
  description = "GRISTMILL_LEDGER where parts.database is off."
  type        = string
  default     = null

  validation {
    condition     = var.parts.database || !var.parts.services || var.ledger_url != null
    error_message = "parts.database is off and parts.services on: say where the ledger is, as ledger_url."
  }
}

# The network

variable "cidr" {
  description = "Addresses of the network that is made."
  type        = string
  default     = "10.42.0.0/16"
}

variable "num_zones" {
  description = "Availability zones of the network that is made."
  type        = number
  default     = 3
}

variable "vpc_id" {
  description = "The network where parts.network is off."
  type        = string
  default     = null

  validation {
    condition     = var.parts.network || !(var.parts.database || var.parts.services || var.parts.workers) || var.vpc_id != null
    error_message = "parts.network is off: say which network there is, as vpc_id and private_subnet_ids, or switch off what needs one."
  }
}

variable "private_subnet_ids" {
  description = "Its private subnets, in two zones at least, with a way to AWS."
  type        = list(string)
  default     = []
}

variable "public_subnet_ids" {
  description = "Its public subnets, for a public API."
  type        = list(string)
  default     = []
}

# The API and control

variable "public" {
  description = "Whether the API can be reached from the Internet."
  type        = bool
  default     = false
}

variable "certificate_arn" {
  description = "Certificate of AWS Certificate Manager for the name that callers use."
  type        = string
  default     = null

  validation {
    condition     = !var.parts.services || var.certificate_arn != null
    error_message = "parts.services is on: the API is served over TLS only, so certificate_arn is needed."
  }
}

variable "caller_cidrs" {
  description = "Networks that may call the API."
  type        = list(string)
  default     = ["10.0.0.0/8"]
}

variable "service_disk_gib" {
  description = "Disk of each task of them, from 21 to 200: twice the image, and so twice the model, has to fit."
  type        = number
  default     = 60
}

variable "num_api_tasks" {
  type    = number
  default = 2
}

variable "num_control_tasks" {
  type    = number
  default = 2
}

# The workers

variable "machine_types" {
  description = "Kinds of machines for workers, whose GPUs know bfloat16; the more, the easier a spot machine is found."
  type        = list(string)
  default     = ["g6.xlarge", "g6.2xlarge", "g5.xlarge", "g5.2xlarge"]
}

variable "num_gpus" {
  description = "GPUs of one worker; 0 for machines without."
  type        = number
  default     = 1
}

variable "worker_memory_mib" {
  description = "Main memory of a worker, in MiB: less than its machine has, as the system needs some."
  type        = number
  default     = 12288
}

variable "machine_image_id" {
  description = "Image of the machines; null is what AWS recommends for ECS with GPUs."
  type        = string
  default     = null
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

# Metrics and alarms

variable "metrics_namespace" {
  description = "The namespace of CloudWatch that control publishes to."
  type        = string
  default     = "gristmill"
}

variable "alarm_topic_arns" {
  description = "Topics of SNS that alarms are told to."
  type        = list(string)
  default     = []
}
