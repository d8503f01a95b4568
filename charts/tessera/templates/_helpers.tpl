{{/* Names. */}}
{{- define "tessera.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tessera.fullname" -}}
{{- default (printf "%s-%s" .Release.Name (include "tessera.name" .)) .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tessera.serviceAccountName" -}}
{{- if .Values.webhook.serviceAccount.create -}}
{{- default (include "tessera.fullname" .) .Values.webhook.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.webhook.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Whether the webhook follows pods, to know what is free. */}}
{{- define "tessera.followsPods" -}}
{{- $fallback := default dict (default dict .Values.config).fallback -}}
{{- if or .Values.webhook.followPods (eq (default "" $fallback.when) "full") (default dict $fallback.full).enabled -}}true{{- end -}}
{{- end -}}

{{/* The controller of self-managed certificates. Another `app`: the webhook's Service must not lead to it. */}}
{{- define "tessera.controllerName" -}}
{{- printf "%s-certificates" (include "tessera.fullname" . | trunc 50 | trimSuffix "-") -}}
{{- end -}}

{{- define "tessera.controllerServiceAccountName" -}}
{{- if .Values.certificates.controller.serviceAccount.create -}}
{{- default (include "tessera.controllerName" .) .Values.certificates.controller.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.certificates.controller.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Whether the controller evicts pods that wait: not empty where it does. */}}
{{- define "tessera.patience" -}}
{{- if or .Values.controller.patience (not (has (toString (dig "fallback" "patience" "" (default dict .Values.config))) (list "" "off" "0s" "<nil>"))) -}}
true
{{- end -}}
{{- end -}}

{{- define "tessera.controllerSelectorLabels" -}}
app: {{ include "tessera.controllerName" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tessera.controllerLabels" -}}
{{ include "tessera.controllerSelectorLabels" . }}
app.kubernetes.io/component: certificates
{{ include "tessera.commonLabels" . }}
{{- end -}}

{{- define "tessera.pluginServiceAccountName" -}}
{{- if .Values.devicePlugin.serviceAccount.create -}}
{{- default .Values.devicePlugin.name .Values.devicePlugin.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.devicePlugin.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tessera.dashboardServiceAccountName" -}}
{{- if .Values.dashboard.serviceAccount.create -}}
{{- default .Values.dashboard.name .Values.dashboard.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.dashboard.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the webhook's own authority (self-managed), or with its certificate. */}}
{{- define "tessera.secretName" -}}
{{- if .Values.certificates.secretName -}}
{{- .Values.certificates.secretName -}}
{{- else if eq .Values.certificates.mode "self-managed" -}}
{{- printf "%s-ca" (include "tessera.fullname" .) -}}
{{- else if eq .Values.certificates.mode "given" -}}
{{- fail "certificates.mode is given: certificates.secretName must name a Secret of type kubernetes.io/tls" -}}
{{- else -}}
{{- printf "%s-tls" (include "tessera.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "tessera.image" -}}
{{- $repository := required "image.repository is not set, and Tessera has no public image: build the image, push it to a registry that your nodes can pull from, and say --set image.repository=REGISTRY/tessera (docs/install.md)" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Labels. Selectors never change: they are few. */}}
{{- define "tessera.selectorLabels" -}}
app: {{ include "tessera.fullname" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tessera.pluginSelectorLabels" -}}
app: {{ .Values.devicePlugin.name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tessera.dashboardSelectorLabels" -}}
app: {{ .Values.dashboard.name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tessera.commonLabels" -}}
app.kubernetes.io/name: {{ include "tessera.name" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tessera.labels" -}}
{{ include "tessera.selectorLabels" . }}
app.kubernetes.io/component: webhook
{{ include "tessera.commonLabels" . }}
{{- end -}}

{{- define "tessera.pluginLabels" -}}
{{ include "tessera.pluginSelectorLabels" . }}
app.kubernetes.io/component: device-plugin
{{ include "tessera.commonLabels" . }}
{{- end -}}

{{- define "tessera.dashboardLabels" -}}
{{ include "tessera.dashboardSelectorLabels" . }}
app.kubernetes.io/component: dashboard
{{ include "tessera.commonLabels" . }}
{{- end -}}

{{/* What Pod Security calls "restricted". */}}
{{- define "tessera.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tessera.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/*
The resources besides nvidia.com/gpu and nvidia.com/mig-* whose pods the webhook must see: those that injection is
configured for, and those that are listed.
*/}}
{{- define "tessera.extraResources" -}}
{{- $names := .Values.webhook.extraResources -}}
{{- $injection := default dict (default dict .Values.config).injection -}}
{{- $maps := list (default dict $injection.resourceMap) -}}
{{- range $_, $map := default dict $injection.namespaceResourceMap -}}
{{- $maps = append $maps $map -}}
{{- end -}}
{{- range $map := $maps -}}
{{- range $_, $byResource := $map -}}
{{- $names = concat $names (keys $byResource) -}}
{{- end -}}
{{- end -}}
{{- $extra := list -}}
{{- range $name := $names | uniq | sortAlpha -}}
{{- if not (or (eq $name "nvidia.com/gpu") (hasPrefix "nvidia.com/mig-" $name)) -}}
{{- $extra = append $extra $name -}}
{{- end -}}
{{- end -}}
{{- toJson $extra -}}
{{- end -}}

{{/*
The folders of the host in which a node's program checks that its devices' files exist: each path up to the folder
before the first {id} or {n}. NVML's devices are in /dev and described in /proc/driver. Takes the devices' configuration.
*/}}
{{- define "tessera.hostFolders" -}}
{{- $folders := list -}}
{{- range $entry := default list .static -}}
{{- range $file := concat (default list $entry.deviceNodes) (default list $entry.mounts) -}}
{{- $folders = append $folders (dir (first (splitList "{" $file.hostPath))) -}}
{{- end -}}
{{- end -}}
{{- if hasKey . "nvml" -}}
{{- $folders = concat $folders (list "/dev" "/proc/driver") -}}
{{- end -}}
{{- toJson ($folders | uniq | sortAlpha) -}}
{{- end -}}

{{/* Whether the device plugin cuts real cards; empty: it does not. */}}
{{- define "tessera.pluginCuts" -}}
{{- if (default dict .Values.devicePlugin.config.nvml).cut -}}true{{- end -}}
{{- end -}}

{{/* The DRA driver's devices: its own configuration, else the device plugin's, for nodes that move from one to the other. */}}
{{- define "tessera.draConfig" -}}
{{- toYaml (default .Values.devicePlugin.config .Values.draDriver.config) -}}
{{- end -}}

{{/* Whether the DRA driver cuts real cards; empty: it does not. */}}
{{- define "tessera.draCuts" -}}
{{- $nvml := default dict (fromYaml (include "tessera.draConfig" .)).nvml -}}
{{- if and $nvml.cut (eq (default "static" $nvml.partitioning) "dynamic") -}}true{{- end -}}
{{- end -}}

{{/* Whether the DRA driver follows its node's layout annotation, and writes what became of it; empty: it does not. */}}
{{- define "tessera.draWritesNode" -}}
{{- if or (hasKey (fromYaml (include "tessera.draConfig" .)) "simulated") (include "tessera.draCuts" .) -}}true{{- end -}}
{{- end -}}

{{- define "tessera.draServiceAccountName" -}}
{{- if .Values.draDriver.serviceAccount.create -}}
{{- default .Values.draDriver.name .Values.draDriver.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.draDriver.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tessera.draSelectorLabels" -}}
app: {{ .Values.draDriver.name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tessera.draLabels" -}}
{{ include "tessera.draSelectorLabels" . }}
app.kubernetes.io/component: dra-driver
{{ include "tessera.commonLabels" . }}
{{- end -}}

{{/* `tessera controller`; not the controller of certificates. */}}
{{- define "tessera.mainControllerServiceAccountName" -}}
{{- if .Values.controller.serviceAccount.create -}}
{{- default .Values.controller.name .Values.controller.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.controller.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tessera.mainControllerSelectorLabels" -}}
app: {{ .Values.controller.name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tessera.mainControllerLabels" -}}
{{ include "tessera.mainControllerSelectorLabels" . }}
app.kubernetes.io/component: controller
{{ include "tessera.commonLabels" . }}
{{- end -}}

{{/* Something that exists only while `helm test` runs. */}}
{{- define "tessera.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* The right to ConfigMaps that mig-manager reads: their names, and the verbs. */}}
{{- define "tessera.migConfigMapRule" -}}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: {{ toJson (index . 0) }}
  verbs: [{{ index . 1 }}]
{{- end }}

{{/* The same right in the namespace of NVIDIA's operator alone, if the values name it: root, name, labels, account, names, verbs. */}}
{{- define "tessera.migConfigMapRole" -}}
{{- with .root.Values.nvidiaOperatorNamespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $.name }}
  namespace: {{ . }}
  labels:
    {{- include $.labels $.root | nindent 4 }}
rules:
  {{- include "tessera.migConfigMapRule" (list $.names $.verbs) | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $.name }}
  namespace: {{ . }}
  labels:
    {{- include $.labels $.root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $.name }}
subjects:
  - kind: ServiceAccount
    name: {{ $.account }}
    namespace: {{ $.root.Release.Namespace }}
{{- end }}
{{- end }}

{{/* The namespaces whose pods the webhook never sees, as a list in JSON. */}}
{{- define "tessera.unseenNamespaces" -}}
{{- concat (list "kube-system" .Release.Namespace) .Values.webhook.excludedNamespaces | uniq | toJson }}
{{- end }}
