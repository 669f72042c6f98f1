{{- define "pointsman.name" -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- end -}}

{{- define "pointsman.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "pointsman.pool" -}}
{{ .Values.pool.name | default (include "pointsman.name" .) }}
{{- end -}}

{{- define "pointsman.selector" -}}
app.kubernetes.io/name: pointsman
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pointsman.labels" -}}
{{ include "pointsman.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "pointsman.workerLabels" -}}
{{- with .Values.discovery.selector -}}
{{- toYaml . -}}
{{- else -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: worker
{{- end -}}
{{- end -}}

{{- define "pointsman.workerSelector" -}}
{{- $pairs := list -}}
{{- range $key, $value := include "pointsman.workerLabels" . | fromYaml -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}

{{/* Where the endpoint picker finds workers. */}}
{{- define "pointsman.eppDiscovery" -}}
{{- if eq .Values.discovery.backend "inferencepool" -}}
- --discovery-backend=inferencepool
- --pool-name={{ include "pointsman.pool" . }}
{{- else -}}
{{ include "pointsman.recordDiscovery" . }}
{{- end -}}
{{- end -}}

{{/* Where the records of workers are: the forwarder's way always, for it needs their engines' addresses. */}}
{{- define "pointsman.recordDiscovery" -}}
{{- if eq .Values.discovery.backend "etcd" -}}
- --discovery-backend=etcd
- --etcd-endpoint={{ required "discovery.etcdEndpoint is needed for backend etcd" .Values.discovery.etcdEndpoint }}
{{- else -}}
- --discovery-backend=kubernetes
- --k8s-label-selector={{ include "pointsman.workerSelector" . }}
{{- end -}}
{{- end -}}

{{/* The flags that the endpoint picker and the forwarder share. */}}
{{- define "pointsman.fleetArgs" -}}
- --kv-event-transport={{ .Values.epp.kvEvents }}
{{- with .Values.nats.url }}
- --nats-server={{ . }}
{{- end }}
- --kv-overlap-weight={{ .Values.epp.overlapWeight }}
{{- if .Values.trust.keySecret }}
- --direct-trust=hmac
- --direct-key-file=/etc/pointsman/route/keys
{{- end }}
{{- end -}}

{{- define "pointsman.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* The headers that only an EPP may set, see docs/headers.md. */}}
{{- define "pointsman.ownHeaders" -}}
- x-gateway-destination-endpoint
- x-gateway-destination-endpoint-served
- x-gateway-destination-endpoint-subset
- x-worker-instance-id
- x-worker-fallback-ids
- x-prefill-instance-id
- x-prefill-skip
- x-data-parallel-rank
- x-prefill-data-parallel-rank
- x-dp-rank
- x-prefill-dp-rank
- x-dynamo-worker-instance-id
- x-dynamo-prefill-instance-id
- x-prefiller-host-port
- x-infera-route-sig
- x-infera-picker-id
{{- end -}}

{{/* The forwarder as a native sidecar: it starts before the engine and ends after it. */}}
{{- define "pointsman.forwarder" -}}
- name: forwarder
  image: {{ include "pointsman.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  restartPolicy: Always
  command: [/forwarder]
  args:
  - --router-mode=direct
  - --port={{ .Values.forwarder.port }}
  - --metrics-port={{ .Values.forwarder.metricsPort }}
  - --request-transport={{ .Values.forwarder.requestTransport }}
  {{- include "pointsman.recordDiscovery" . | nindent 2 }}
  {{- include "pointsman.fleetArgs" . | nindent 2 }}
  {{- with .Values.forwarder.tokenizerPath }}
  - --router-tokenizer-path={{ . }}
  {{- end }}
  {{- if .Values.trust.keySecret }}
  - --direct-untrusted={{ .Values.trust.untrusted }}
  {{- end }}
  # It is told to end only when the engine has ended: there is nobody left to wait for.
  - --drain-delay=0
  - --drain-timeout={{ .Values.forwarder.drainTimeoutSeconds }}
  {{- with .Values.forwarder.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  env:
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  {{- with .Values.forwarder.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - {name: forwarder, containerPort: {{ .Values.forwarder.port }}}
  - {name: fwd-metrics, containerPort: {{ .Values.forwarder.metricsPort }}}
  # /health and not /ready: the engine starts when this has succeeded, and must not wait for the fleet.
  startupProbe:
    httpGet: {path: /health, port: fwd-metrics}
    periodSeconds: 1
    failureThreshold: 30
  livenessProbe:
    httpGet: {path: /health, port: fwd-metrics}
    periodSeconds: 10
    failureThreshold: 3
  readinessProbe:
    httpGet: {path: /ready, port: fwd-metrics}
    periodSeconds: 2
    failureThreshold: 2
  securityContext:
    {{- include "pointsman.security" . | nindent 4 }}
  resources:
    {{- toYaml .Values.forwarder.resources | nindent 4 }}
  {{- if or .Values.trust.keySecret .Values.forwarder.volumeMounts }}
  volumeMounts:
  {{- if .Values.trust.keySecret }}
  - {name: route-keys, mountPath: /etc/pointsman/route, readOnly: true}
  {{- end }}
  {{- with .Values.forwarder.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end -}}

{{/* A quantity of Ki, Mi or plain bytes as a number. */}}
{{- define "pointsman.bytes" -}}
{{- if hasSuffix "Mi" . -}}{{ mul (trimSuffix "Mi" . | int) 1048576 }}
{{- else if hasSuffix "Ki" . -}}{{ mul (trimSuffix "Ki" . | int) 1024 }}
{{- else -}}{{ . }}
{{- end -}}
{{- end -}}
