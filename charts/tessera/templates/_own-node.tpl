{{/*
RBAC cannot limit a right to the account's own node: this policy does, by the node that the token of a node's program is bound to. On that node only
NVIDIA's and run.ai's labels and annotations may change, and which devices are in use. Takes name, account (a user's name), who (in words), labels.
*/}}
{{- define "tessera.ownNodePolicy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}-own-node
  labels:
    {{- .labels | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [UPDATE]
        resources: [nodes, nodes/*]
  matchConditions:
    - name: the-{{ .who | replace " " "-" }}
      expression: request.userInfo.username == "{{ .account }}"
  variables:
    - name: labels
      expression: object.metadata.?labels.orValue({})
    - name: oldLabels
      expression: oldObject.metadata.?labels.orValue({})
    - name: annotations
      expression: object.metadata.?annotations.orValue({})
    - name: oldAnnotations
      expression: oldObject.metadata.?annotations.orValue({})
  validations:
    - expression: request.name in request.userInfo.?extra["authentication.kubernetes.io/node-name"].orValue([])
      message: a {{ .who }} may change only its own node
    - expression: >-
        object.?spec == oldObject.?spec && object.?status == oldObject.?status &&
        object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
        object.metadata.?finalizers == oldObject.metadata.?finalizers
      message: a {{ .who }} may change only labels and annotations of its node
    - expression: >-
        variables.labels.all(k, k.startsWith("nvidia.com/") || variables.oldLabels[?k] == optional.of(variables.labels[k])) &&
        variables.oldLabels.all(k, k.startsWith("nvidia.com/") || k in variables.labels)
      message: a {{ .who }} may change only labels of nvidia.com/
    - expression: >-
        variables.annotations.all(k, k.startsWith("nvidia.com/") || k.startsWith("run.ai/") || k == "tessera.dev/devices-in-use" ||
        variables.oldAnnotations[?k] == optional.of(variables.annotations[k])) &&
        variables.oldAnnotations.all(k, k.startsWith("nvidia.com/") || k.startsWith("run.ai/") || k == "tessera.dev/devices-in-use" ||
        k in variables.annotations)
      message: a {{ .who }} may change only annotations of nvidia.com/ and run.ai/, and tessera.dev/devices-in-use
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}-own-node
  labels:
    {{- .labels | nindent 4 }}
spec:
  policyName: {{ .name }}-own-node
  validationActions: [Deny]
{{- end -}}
