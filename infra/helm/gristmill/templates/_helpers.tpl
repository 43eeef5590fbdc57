{{- /* What the templates share. A component is api, control, worker or migrate. */ -}}

{{- define "gristmill.name" -}}
{{- if contains "gristmill" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-gristmill" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gristmill.selector" -}}
app.kubernetes.io/name: gristmill
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "gristmill.labels" -}}
{{ include "gristmill.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "gristmill.image" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default .appVersion }}
{{- end -}}
{{- end -}}

{{- /* The environment of a component. `needs` names what it may know; nothing else is there. */ -}}
{{- define "gristmill.env" -}}
{{- $values := .root.Values -}}
{{- range $need := .needs }}
{{- if eq $need "ledger" }}
- name: GRISTMILL_LEDGER
  valueFrom: {secretKeyRef: {name: {{ $values.ledger.secret.name }}, key: {{ $values.ledger.secret.key }}}}
{{- else if eq $need "pepper" }}
- name: GRISTMILL_KEY_PEPPER
  valueFrom: {secretKeyRef: {name: {{ $values.keyPepper.secret.name }}, key: {{ $values.keyPepper.secret.key }}}}
{{- else if eq $need "queue" }}
- name: GRISTMILL_QUEUE
  {{- include "gristmill.url" $values.queue | nindent 2 }}
{{- else if eq $need "broker" }}
- name: GRISTMILL_BROKER
  {{- include "gristmill.url" $values.broker | nindent 2 }}
{{- else if eq $need "store" }}
- name: GRISTMILL_STORE
  value: {{ required "store.url: where files and results lie, such as s3://bucket/fleet?region=eu-central-1" $values.store.url | quote }}
{{- end }}
{{- end }}
{{- if $values.aws.region }}
- name: AWS_DEFAULT_REGION
  value: {{ $values.aws.region | quote }}
{{- end }}
{{- with index $values.aws.secrets .component }}
{{- $secret := . }}
{{- range $name := list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ $name }}}}
{{- end }}
{{- end }}
{{- range $name := keys $values.environment | sortAlpha }}
- name: {{ $name }}
  value: {{ get $values.environment $name | toString | quote }}
{{- end }}
{{- $settings := merge (dict) .settings (index $values .component).settings $values.settings }}
{{- range $name := keys $settings | sortAlpha }}
{{- /* A large whole number must not come out as 8.58e+09. */}}
{{- $value := get $settings $name }}
{{- if kindIs "float64" $value }}{{ if eq (floor $value) $value }}{{ $value = int64 $value }}{{ end }}{{ end }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{- define "gristmill.url" -}}
{{- if .url -}}
value: {{ .url | quote }}
{{- else -}}
valueFrom: {secretKeyRef: {name: {{ .secret.name }}, key: {{ .secret.key }}}}
{{- end -}}
{{- end -}}

{{- define "gristmill.modelPath" -}}
{{- required "model.path: the folder of the model in the containers, such as /models/my-model" .Values.model.path -}}
{{- end -}}

{{- define "gristmill.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "gristmill.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "gristmill.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gristmill.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gristmill.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "gristmill.selector" . | nindent 8 }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "gristmill.selector" . | nindent 8 }}
{{- end -}}

{{- define "gristmill.ports" -}}
{{- range . }}
- {port: {{ . }}, protocol: TCP}
{{- end }}
{{- end -}}
