{{- /* What KEDA counts workers by. */ -}}
{{- define "gristmill.triggers" -}}
{{- $scaling := .Values.worker.scaling }}
{{- $name := printf "%s-worker" (include "gristmill.name" .) }}
{{- if eq $scaling.trigger "prometheus" }}
{{- $model := $scaling.prometheus.model | default (base (include "gristmill.modelPath" .)) }}
{{- if and (lt (int $scaling.minReplicas) 1) (not (regexMatch (printf "^(?:%s)$" $scaling.prometheus.lanes) "bulk")) }}
{{- fail "worker.scaling.minReplicas must be 1 at least where worker.scaling.prometheus.lanes leaves out bulk: rows that nobody alive can run count there, so these workers would never come back from zero" }}
{{- end }}
{{- if and .Values.control.enabled (not .Values.monitoring.podMonitor.enabled) (not .Values.monitoring.scrapedOtherwise) }}
{{- fail "worker.scaling.trigger is prometheus, and nothing tells Prometheus to ask the control side: without its numbers workers would never come. Switch monitoring.podMonitor.enabled on (for Prometheus' operator), or set monitoring.scrapedOtherwise where Prometheus finds these pods by itself" }}
{{- end }}
# Every control process tells the same backlog, hence max; seconds that a single worker would need,
# so that the count does not depend on how many there are.
- type: prometheus
  metricType: AverageValue
  metadata:
    serverAddress: {{ $scaling.prometheus.serverAddress | quote }}
    query: >-
      sum(max by (lane) (gristmill_backlog_worker_seconds{model={{ $model | quote }},lane=~{{ $scaling.prometheus.lanes | quote }}}))
      or 0 * max(gristmill_batches)
    threshold: {{ $scaling.prometheus.targetSeconds | quote }}
    activationThreshold: "0"
    # No backlog is 0 as long as a control process has read so in the ledger. While none has, or the
    # ledger is away, there is no answer at all, which is no reason to stop anybody.
    ignoreNullValues: "false"
  {{- with $scaling.prometheus.authenticationRef }}
  authenticationRef: {name: {{ . }}}
  {{- end }}
{{- else if eq $scaling.trigger "redis" }}
- type: redis-streams
  metricType: AverageValue
  metadata:
    address: {{ required "worker.scaling.redis.address: HOST:PORT of the queue" $scaling.redis.address | quote }}
    databaseIndex: {{ $scaling.redis.databaseIndex | quote }}
    enableTLS: {{ $scaling.redis.enableTLS | quote }}
    # Without a consumer group it counts all that lies there, with what workers hold: Shards leave
    # the stream when they are done.
    stream: {{ printf "{%s}:%s:messages" $scaling.redis.prefix $scaling.redis.lane | quote }}
    streamLength: {{ $scaling.redis.shardsPerWorker | quote }}
  {{- if $scaling.redis.secret.name }}
  authenticationRef: {name: {{ $name }}}
  {{- end }}
{{- else if eq $scaling.trigger "sqs" }}
- type: aws-sqs-queue
  metricType: AverageValue
  metadata:
    queueURL: {{ required "worker.scaling.sqs.queueUrl: https://sqs.REGION.amazonaws.com/ACCOUNT/PREFIX-bulk" $scaling.sqs.queueUrl | quote }}
    queueLength: {{ $scaling.sqs.shardsPerWorker | quote }}
    awsRegion: {{ required "aws.region: where the queue lies" .Values.aws.region | quote }}
    # What workers hold is work too.
    scaleOnInFlight: "true"
    scaleOnDelayed: "true"
  authenticationRef: {name: {{ $name }}}
{{- end }}
{{- end -}}
