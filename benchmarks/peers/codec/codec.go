// Package codec answers reviews by way of the Kubernetes types and codec, as webhooks written in Go usually do.
package codec

import (
	"encoding/json"
	"errors"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"tessera.example/benchmarks/peers/fallback"
)

var scheme = runtime.NewScheme()
var decoder = serializer.NewCodecFactory(scheme).UniversalDeserializer()

func init() {
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(admissionv1.AddToScheme(scheme))
}

// Answer answers a review.
func Answer(body []byte, view fallback.View) ([]byte, error) {
	review := admissionv1.AdmissionReview{}
	if _, _, err := decoder.Decode(body, nil, &review); err != nil {
		return nil, err
	}
	request := review.Request
	if request == nil {
		return nil, errors.New("request: missing")
	}
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true}
	if request.Operation == admissionv1.Create && request.SubResource == "" && request.Kind.Kind == "Pod" {
		pod := corev1.Pod{}
		if _, _, err := decoder.Decode(request.Object.Raw, nil, &pod); err != nil {
			return nil, err
		}
		if err := fill(response, fallback.Decide(podOf(&pod), view)); err != nil {
			return nil, err
		}
	}
	return json.Marshal(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
}

func fill(response *admissionv1.AdmissionResponse, verdict fallback.Verdict) error {
	response.Allowed = verdict.Allowed
	if !verdict.Allowed {
		response.Result = &metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: verdict.Message}
		return nil
	}
	response.Warnings = verdict.Warnings
	if verdict.Audit != "" {
		response.AuditAnnotations = map[string]string{"fallback": verdict.Audit}
	}
	if len(verdict.Operations) == 0 {
		return nil
	}
	patch, err := json.Marshal(verdict.Operations)
	kind := admissionv1.PatchTypeJSONPatch
	response.Patch, response.PatchType = patch, &kind
	return err
}

func podOf(pod *corev1.Pod) *fallback.Pod {
	found := &fallback.Pod{
		HasMetadata:    true,
		HasAnnotations: pod.Annotations != nil,
		Policy:         pod.Annotations["gpu-webhook.k8s.io/fallback-policy"],
		Record:         pod.Annotations["gpu-webhook.k8s.io/fallback"],
		Init:           containersOf(pod.Spec.InitContainers),
		Containers:     containersOf(pod.Spec.Containers),
		Selector:       pod.Spec.NodeSelector,
	}
	for _, one := range pod.Spec.Tolerations {
		found.Tolerations = append(found.Tolerations,
			fallback.Toleration{Key: one.Key, Operator: string(one.Operator), Value: one.Value, Effect: string(one.Effect)})
	}
	return found
}

func containersOf(containers []corev1.Container) []fallback.Container {
	found := make([]fallback.Container, len(containers))
	for i := range containers {
		one := &containers[i]
		found[i] = fallback.Container{
			Requests:     amountsOf(one.Resources.Requests),
			Limits:       amountsOf(one.Resources.Limits),
			HasResources: one.Resources.Requests != nil || one.Resources.Limits != nil,
			HasRequests:  one.Resources.Requests != nil,
			HasLimits:    one.Resources.Limits != nil,
			Sidecar:      one.RestartPolicy != nil && *one.RestartPolicy == corev1.ContainerRestartPolicyAlways,
		}
	}
	return found
}

func amountsOf(list corev1.ResourceList) fallback.Amounts {
	var found fallback.Amounts
	for name, quantity := range list {
		if fallback.IsGPU(string(name)) {
			found = append(found, fallback.Amount{Resource: string(name), Count: quantity.Value()})
		}
	}
	found.Sort()
	return found
}
