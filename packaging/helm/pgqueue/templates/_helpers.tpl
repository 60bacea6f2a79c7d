{{- define "pgqueue.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pgqueue.labels" -}}
app.kubernetes.io/name: pgqueue
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pgqueue.dsn" -}}
- name: PGQUEUE_DSN
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end }}

{{- define "pgqueue.name" -}}
{{ printf "%s-%s" .release .part | trunc 63 | trimSuffix "-" }}
{{- end }}
