package partial

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"

	"tessera.example/benchmarks/peers/fallback"
)

type review struct {
	uid, kind, operation, subresource string
	pod                               fallback.Pod
}

// Answer answers a review.
func Answer(body []byte, view fallback.View) ([]byte, error) {
	one, err := decode(body)
	if err != nil {
		return nil, err
	}
	if one.uid == "" {
		return nil, errors.New("request.uid: missing")
	}
	verdict := fallback.Verdict{Allowed: true}
	if one.operation == "CREATE" && one.subresource == "" && one.kind == "Pod" {
		verdict = fallback.Decide(&one.pod, view)
	}
	return encode(one.uid, &verdict)
}

func decode(body []byte) (*review, error) {
	s := &scanner{data: body}
	one := &review{}
	_, err := s.object(func(key []byte) error {
		if string(key) != "request" {
			return s.skip()
		}
		_, err := s.object(func(key []byte) (err error) {
			switch string(key) {
			case "uid":
				one.uid, err = s.text()
			case "operation":
				one.operation, err = s.text()
			case "subResource":
				one.subresource, err = s.text()
			case "kind":
				_, err = s.object(func(key []byte) (err error) {
					if string(key) != "kind" {
						return s.skip()
					}
					one.kind, err = s.text()
					return err
				})
			case "object":
				_, err = s.object(func(key []byte) error { return s.pod(string(key), &one.pod) })
			default:
				err = s.skip()
			}
			return err
		})
		return err
	})
	return one, err
}

func (s *scanner) pod(key string, pod *fallback.Pod) (err error) {
	switch key {
	case "metadata":
		pod.HasMetadata, err = s.object(func(key []byte) error {
			if string(key) != "annotations" {
				return s.skip()
			}
			pod.HasAnnotations, err = s.object(func(key []byte) (err error) {
				switch string(key) {
				case "gpu-webhook.k8s.io/fallback-policy":
					pod.Policy, err = s.text()
				case "gpu-webhook.k8s.io/fallback":
					pod.Record, err = s.text()
				default:
					err = s.skip()
				}
				return err
			})
			return err
		})
	case "spec":
		_, err = s.object(func(key []byte) (err error) {
			switch string(key) {
			case "containers":
				pod.Containers, err = s.containers()
			case "initContainers":
				pod.Init, err = s.containers()
			case "nodeSelector":
				pod.Selector = map[string]string{}
				_, err = s.object(func(key []byte) (err error) {
					pod.Selector[string(key)], err = s.text()
					return err
				})
			case "tolerations":
				err = s.array(func() error { return s.toleration(pod) })
			default:
				err = s.skip()
			}
			return err
		})
	default:
		err = s.skip()
	}
	return err
}

func (s *scanner) toleration(pod *fallback.Pod) error {
	var one fallback.Toleration
	_, err := s.object(func(key []byte) (err error) {
		switch string(key) {
		case "key":
			one.Key, err = s.text()
		case "operator":
			one.Operator, err = s.text()
		case "value":
			one.Value, err = s.text()
		case "effect":
			one.Effect, err = s.text()
		default:
			err = s.skip()
		}
		return err
	})
	pod.Tolerations = append(pod.Tolerations, one)
	return err
}

func (s *scanner) containers() ([]fallback.Container, error) {
	var found []fallback.Container
	err := s.array(func() error {
		var one fallback.Container
		_, err := s.object(func(key []byte) (err error) {
			switch string(key) {
			case "restartPolicy":
				var policy string
				policy, err = s.text()
				one.Sidecar = policy == "Always"
			case "resources":
				one.HasResources, err = s.object(func(key []byte) (err error) {
					switch string(key) {
					case "requests":
						one.HasRequests, err = s.amounts(&one.Requests)
					case "limits":
						one.HasLimits, err = s.amounts(&one.Limits)
					default:
						err = s.skip()
					}
					return err
				})
			default:
				err = s.skip()
			}
			return err
		})
		found = append(found, one)
		return err
	})
	return found, err
}

func (s *scanner) amounts(into *fallback.Amounts) (bool, error) {
	return s.object(func(key []byte) error {
		resource := string(key)
		if !fallback.IsGPU(resource) {
			return s.skip()
		}
		start := s.at
		if err := s.skip(); err != nil {
			return err
		}
		text := s.data[start:s.at]
		if len(text) > 1 && text[0] == '"' {
			text = text[1 : len(text)-1]
		}
		count, err := strconv.ParseInt(string(text), 10, 64)
		*into = append(*into, fallback.Amount{Resource: resource, Count: count})
		return err
	})
}

const head = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":`

func encode(uid string, verdict *fallback.Verdict) ([]byte, error) {
	out := make([]byte, 0, 2048)
	out = append(out, head...)
	out = quote(out, uid)
	if !verdict.Allowed {
		out = append(out, `,"allowed":false,"status":{"code":403,"reason":"Forbidden","message":`...)
		out = quote(out, verdict.Message)
		return append(out, `}}}`...), nil
	}
	out = append(out, `,"allowed":true`...)
	if len(verdict.Operations) > 0 {
		patch, err := json.Marshal(verdict.Operations)
		if err != nil {
			return nil, err
		}
		out = append(out, `,"patchType":"JSONPatch","patch":"`...)
		out = base64.StdEncoding.AppendEncode(out, patch)
		out = append(out, '"')
	}
	for i, warning := range verdict.Warnings {
		if i == 0 {
			out = append(out, `,"warnings":[`...)
		} else {
			out = append(out, ',')
		}
		out = quote(out, warning)
	}
	if len(verdict.Warnings) > 0 {
		out = append(out, ']')
	}
	if verdict.Audit != "" {
		out = append(out, `,"auditAnnotations":{"fallback":`...)
		out = quote(out, verdict.Audit)
		out = append(out, '}')
	}
	return append(out, `}}`...), nil
}

// quote appends a JSON string; what needs escaping is rare here.
func quote(out []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' || c > '~' {
			quoted, _ := json.Marshal(text)
			return append(out, quoted...)
		}
	}
	out = append(out, '"')
	out = append(out, text...)
	return append(out, '"')
}
