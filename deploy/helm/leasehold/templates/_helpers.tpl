{{- /* What everything is called: the release, with the name of the chart where that is not in it. A member has
the name of its pod, and its certificates bear it. */ -}}
{{- define "leasehold.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 30 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end -}}

{{- define "leasehold.id" -}}
{{- required "clusterId: draw an identity of the cluster with `uuidgen`, before the first start, and never change it" .Values.clusterId -}}
{{- end -}}

{{- define "leasehold.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- /* What selects the members. It must never change. */ -}}
{{- define "leasehold.selector" -}}
app.kubernetes.io/name: leasehold
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "leasehold.release" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{- define "leasehold.labels" -}}
app.kubernetes.io/name: leasehold
{{ include "leasehold.release" . }}
{{- end -}}

{{- /* Not the name of the members: services and their selectors would take it for one. */ -}}
{{- define "leasehold.backup.labels" -}}
app.kubernetes.io/name: leasehold-backup
{{ include "leasehold.release" . }}
{{- end -}}

{{- define "leasehold.certificate.key" -}}
privateKey: {algorithm: ECDSA, size: 256, encoding: PKCS8, rotationPolicy: Always}
duration: 2160h
renewBefore: 720h
{{- end -}}
