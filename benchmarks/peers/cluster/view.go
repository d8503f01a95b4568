// Package cluster keeps the nodes in an informer, as webhooks written in Go usually do.
//
// What pods of one selection can get is remembered until a node changes in a way that matters. The usual webhook
// would walk all nodes for each admission; the comparison is not to hang on that.
package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"tessera.example/benchmarks/peers/fallback"
)

// Client makes a client with client-go's defaults.
func Client(kubeconfig string) (*kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// View is what the nodes offer.
type View struct {
	nodes  func() []*corev1.Node
	synced cache.InformerSynced

	mutex    sync.Mutex
	usable   map[string][]fallback.Offer
	anywhere []fallback.Offer
}

// Of is a view of nodes that do not change.
func Of(nodes func() []*corev1.Node) *View {
	return &View{nodes: nodes, usable: map[string][]fallback.Offer{}}
}

// Watch follows the nodes; transform may make them smaller before they are kept.
func Watch(ctx context.Context, client kubernetes.Interface, transform cache.TransformFunc) (*View, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes := factory.Core().V1().Nodes()
	view := Of(func() []*corev1.Node {
		all, _ := nodes.Lister().List(labels.Everything()) // it cannot fail: it is a map
		return all
	})
	view.synced = nodes.Informer().HasSynced
	if transform != nil {
		if err := nodes.Informer().SetTransform(transform); err != nil {
			return nil, err
		}
	}
	_, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { view.forget() },
		UpdateFunc: func(old, new any) {
			if !sameForUs(old.(*corev1.Node), new.(*corev1.Node)) {
				view.forget()
			}
		},
		DeleteFunc: func(any) { view.forget() },
	})
	factory.Start(ctx.Done())
	return view, err
}

// Ready says whether all nodes have been seen.
func (v *View) Ready() bool { return v.synced() }

func (v *View) forget() {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	clear(v.usable)
	v.anywhere = nil
}

// Usable implements fallback.View.
func (v *View) Usable(pod *fallback.Pod) []fallback.Offer {
	key := selection(pod)
	v.mutex.Lock()
	defer v.mutex.Unlock()
	offers, known := v.usable[key]
	if !known {
		offers = Offers(v.nodes(), pod.Eligible)
		v.usable[key] = offers
	}
	return offers
}

// Anywhere implements fallback.View.
func (v *View) Anywhere() []fallback.Offer {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	if v.anywhere == nil {
		v.anywhere = Offers(v.nodes(), func(*fallback.Node) bool { return true })
	}
	return v.anywhere
}

// Offers are the distinct offers of the nodes that are eligible.
func Offers(nodes []*corev1.Node, eligible func(*fallback.Node) bool) []fallback.Offer {
	found := map[string]fallback.Offer{}
	for _, one := range nodes {
		node := NodeOf(one)
		if len(node.Offer) > 0 && eligible(&node) {
			found[fmt.Sprint(node.Offer)] = node.Offer
		}
	}
	return slices.Collect(maps.Values(found))
}

// NodeOf takes from a node what decisions look at.
func NodeOf(one *corev1.Node) fallback.Node {
	node := fallback.Node{Labels: one.Labels}
	for _, taint := range one.Spec.Taints {
		node.Taints = append(node.Taints, fallback.Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	for name, quantity := range one.Status.Allocatable {
		if resource := string(name); fallback.IsGPU(resource) && !quantity.IsZero() {
			node.Offer = append(node.Offer, fallback.Amount{Resource: resource, Count: quantity.Value()})
		}
	}
	fallback.Amounts(node.Offer).Sort()
	return node
}

func sameForUs(old, new *corev1.Node) bool {
	return maps.Equal(old.Labels, new.Labels) &&
		slices.EqualFunc(old.Spec.Taints, new.Spec.Taints, func(x, y corev1.Taint) bool { return x.MatchTaint(&y) && x.Value == y.Value }) &&
		slices.Equal(NodeOf(old).Offer, NodeOf(new).Offer)
}

func selection(pod *fallback.Pod) string {
	var key strings.Builder
	for _, name := range slices.Sorted(maps.Keys(pod.Selector)) {
		key.WriteString(name)
		key.WriteByte('=')
		key.WriteString(pod.Selector[name])
		key.WriteByte('\n')
	}
	for _, one := range pod.Tolerations {
		for _, part := range []string{one.Key, one.Operator, one.Value, one.Effect} {
			key.WriteString(part)
			key.WriteByte('\x00')
		}
	}
	return key.String()
}
