{{- /* The pod of a worker, as a Deployment or as a Job has it: `root`, `args` beyond the common ones. */ -}}
{{- define "gristmill.workerPod" -}}
{{- $root := .root }}
{{- $it := dict "root" $root "component" "worker" }}
{{- $worker := $root.Values.worker }}
{{- $grace := $worker.drainGraceSeconds }}
metadata:
  labels: {{- include "gristmill.labels" $it | nindent 4 }}
  annotations:
    # What lies in its emptyDirs are caches; without this their nodes would never be taken away.
    cluster-autoscaler.kubernetes.io/safe-to-evict: "true"
    {{- with $worker.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "gristmill.name" $root }}-worker
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- include "gristmill.pullSecrets" $root | nindent 2 }}
  {{- if .isJob }}
  restartPolicy: Never
  {{- end }}
  securityContext: {{- include "gristmill.podSecurity" $root | nindent 4 }}
  # From the hook on so long to save everything (GRISTMILL_DRAIN_GRACE_S), then a margin to end.
  terminationGracePeriodSeconds: {{ add $grace $worker.terminationMarginSeconds }}
  {{- if $worker.gpu.enabled }}
  {{- with $worker.gpu.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- end }}
  {{- include "gristmill.placement" $worker | nindent 2 }}
  containers:
    - name: worker
      image: {{ include "gristmill.image" (merge (dict "appVersion" $root.Chart.AppVersion) $root.Values.image.worker) }}
      imagePullPolicy: {{ $root.Values.image.worker.pullPolicy }}
      args:
        - worker
        - --model
        - {{ include "gristmill.modelPath" $root | quote }}
        - --health
        - 0.0.0.0:8000
        {{- range .args }}
        - {{ . | quote }}
        {{- end }}
      # The queue and the store: a worker knows no database, no broker and no pepper.
      env:
        {{- $own := dict "GRISTMILL_DTYPE" $root.Values.model.dtype "GRISTMILL_DRAIN_GRACE_S" $grace }}
        {{- if $worker.gpu.enabled }}{{ $_ := set $own "GRISTMILL_DEVICE" "cuda" }}{{ end }}
        {{- include "gristmill.env" (merge (dict "needs" (list "queue" "store") "settings" $own) $it) | nindent 8 }}
      ports:
        - {name: health, containerPort: 8000}
      startupProbe:
        httpGet: {path: /livez, port: health}
        periodSeconds: 5
        failureThreshold: 60
      # A worker is live while it loads, and dead when its engine hangs.
      livenessProbe:
        httpGet: {path: /livez, port: health}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 10
        timeoutSeconds: 10
      lifecycle:
        # A pod that is taken away, by the drain of a spot machine's node as well, begins to save at
        # once. The hook waits for nothing: SIGTERM follows, and goes on with the same drain. (tini
        # is process 1, and hands the signal on.)
        preStop: {exec: {command: [sh, -c, kill -USR1 1]}}
      resources:
        {{- $limits := deepCopy ($worker.resources.limits | default dict) }}
        {{- if $worker.gpu.enabled }}{{ $_ := set $limits $worker.gpu.resource $worker.gpu.count }}{{ end }}
        {{- toYaml (merge (dict "limits" $limits) $worker.resources) | nindent 8 }}
      securityContext: {{- include "gristmill.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: cache, mountPath: /var/cache/gristmill}
        {{- if $root.Values.model.volume }}
        - {name: model, mountPath: {{ $root.Values.model.mountPath }}, readOnly: true}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 2Gi}
    - name: cache
      emptyDir: {sizeLimit: {{ $worker.cache.sizeLimit }}}
    {{- with $root.Values.model.volume }}
    - name: model
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end -}}
