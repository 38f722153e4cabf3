{{/* Names derive from the release; resources refer to `<release>-etcd` and `<release>-etcd-client`. */}}
{{- define "quire.operator" -}}{{ .Release.Name }}-operator{{- end }}
{{- define "quire.etcd" -}}{{ .Release.Name }}-etcd{{- end }}
{{- define "quire.etcd.client" -}}{{ .Release.Name }}-etcd-client{{- end }}

{{/* An image: dict "root" $ "name" NAME. A tag, a digest or a registry in the name is kept. */}}
{{- define "quire.image" -}}
{{- $images := .root.Values.images -}}
{{- $name := .name -}}
{{- $last := splitList "/" $name | last -}}
{{- if not (or (contains ":" $last) (contains "@" $last)) -}}
{{- $name = printf "%s:%s" $name ($images.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- $first := splitList "/" $name | first -}}
{{- $hasHost := and (contains "/" $name) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- if and $images.registry (not $hasHost) -}}
{{- $name = printf "%s/%s" (trimSuffix "/" $images.registry) $name -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* Labels that select the pods of a part: dict "root" $ "part" PART. Never change them: they are immutable. */}}
{{- define "quire.selector" -}}
app.kubernetes.io/name: quire-{{ .part }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{/* Labels of pods. None depends on the chart's version, as this would restart pods without need. */}}
{{- define "quire.podLabels" -}}
{{ include "quire.selector" . }}
app.kubernetes.io/part-of: quire
{{- end }}

{{- define "quire.labels" -}}
{{ include "quire.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Security contexts of an unprivileged pod and container. */}}
{{- define "quire.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "quire.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The namespace whose resources the operator handles; empty for all. */}}
{{- define "quire.watched" -}}
{{- if ne .Values.operator.watchNamespace "*" -}}{{ .Values.operator.watchNamespace | default .Release.Namespace }}{{- end -}}
{{- end }}

{{/* Host names of the members, for each other and for clients. */}}
{{- define "quire.etcd.memberHost" -}}
{{ include "quire.etcd" .root }}-{{ .ordinal }}.{{ include "quire.etcd" .root }}-members.{{ .root.Release.Namespace }}.svc
{{- end }}
{{- define "quire.etcd.scheme" -}}{{ ternary "https" "http" .Values.etcd.tls.enabled }}{{- end }}
{{- define "quire.etcd.initialCluster" -}}
{{- $root := . -}}
{{- $found := list -}}
{{- range $n := until (int .Values.etcd.members) -}}
{{- $host := include "quire.etcd.memberHost" (dict "root" $root "ordinal" $n) -}}
{{- $found = append $found (printf "%s-%d=%s://%s:2380" (include "quire.etcd" $root) $n (include "quire.etcd.scheme" $root) $host) -}}
{{- end -}}
{{- join "," $found -}}
{{- end }}
