// Package fallback decides as Tessera does about the pods of the benchmarks: fallback with selectors, taints and
// tolerations, and completed limits. Injection, affinity and the operator's switches are left out, to the peers' advantage.
package fallback

import (
	"slices"
	"strings"
)

// Amounts are the GPU resources of one section, by name.
type Amounts []Amount

type Amount struct {
	Resource string
	Count    int64
}

func (a Amounts) Get(resource string) (int64, bool) {
	for _, one := range a {
		if one.Resource == resource {
			return one.Count, true
		}
	}
	return 0, false
}

func (a Amounts) Sort() {
	slices.SortFunc(a, func(x, y Amount) int { return strings.Compare(x.Resource, y.Resource) })
}

// Container is what is looked at of a container, and which of its maps are there.
type Container struct {
	Requests, Limits                     Amounts
	HasResources, HasRequests, HasLimits bool
	Sidecar                              bool
}

// Asked is what the container requests; a limit without a request counts as one.
func (c *Container) Asked(resource string) int64 {
	if count, found := c.Requests.Get(resource); found {
		return count
	}
	count, _ := c.Limits.Get(resource)
	return count
}

type Toleration struct{ Key, Operator, Value, Effect string }

type Taint struct{ Key, Value, Effect string }

// Pod is what is looked at of a pod.
type Pod struct {
	HasMetadata, HasAnnotations bool
	Policy, Record              string // annotations
	Init, Containers            []Container
	Selector                    map[string]string
	Tolerations                 []Toleration
}

// Offer is what nodes of one kind offer: GPU resources by name, sorted, none of them zero.
type Offer []Amount

func (o Offer) Count(resource string) int64 {
	count, _ := Amounts(o).Get(resource)
	return count
}

// Node is what is looked at of a node.
type Node struct {
	Labels map[string]string
	Taints []Taint
	Offer  Offer
}

var passing = []string{
	"nvidia.com", "amd.com", "intel.com", "habana.ai", "aws.amazon.com", "cloud.google.com",
	"node.kubernetes.io", "node.cloudprovider.kubernetes.io",
}

func (t Taint) mayExclude() bool {
	if t.Effect != "NoSchedule" && t.Effect != "NoExecute" {
		return false
	}
	domain, _, _ := strings.Cut(t.Key, "/")
	return !slices.ContainsFunc(passing, func(known string) bool {
		return domain == known || strings.HasSuffix(domain, "."+known)
	})
}

func (t Toleration) tolerates(taint Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case "Exists":
		return true
	case "", "Equal":
		return t.Key != "" && t.Value == taint.Value
	}
	return false
}

// Eligible says whether the pod could ever be placed on the node.
func (p *Pod) Eligible(node *Node) bool {
	for key, value := range p.Selector {
		if node.Labels[key] != value {
			return false
		}
	}
	for _, taint := range node.Taints {
		if taint.mayExclude() && !slices.ContainsFunc(p.Tolerations, func(t Toleration) bool { return t.tolerates(taint) }) {
			return false
		}
	}
	return true
}
