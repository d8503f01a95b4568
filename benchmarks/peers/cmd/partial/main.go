// Partial is the best that one would write in Go: an informer whose nodes are cut down to what matters, a decoder
// made for reviews, buffers used again, and fewer garbage collections.
package main

import (
	"context"
	"io"
	"log"
	"net/http"
	"runtime/debug"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tessera.example/benchmarks/peers/cluster"
	"tessera.example/benchmarks/peers/fallback"
	"tessera.example/benchmarks/peers/partial"
	"tessera.example/benchmarks/peers/serve"
)

func main() {
	debug.SetGCPercent(400)
	flags := serve.Parse()
	client, err := cluster.Client(flags.Kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	view, err := cluster.Watch(context.Background(), client, small)
	if err != nil {
		log.Fatal(err)
	}
	serve.Run(flags, view.Ready, read, func(body []byte) ([]byte, error) { return partial.Answer(body, view) })
}

// small keeps of a node what decisions look at.
func small(object any) (any, error) {
	node, is := object.(*corev1.Node)
	if !is {
		return object, nil
	}
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion, Labels: node.Labels},
		Spec:       corev1.NodeSpec{Taints: node.Spec.Taints},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{}},
	}
	for name, quantity := range node.Status.Allocatable {
		if fallback.IsGPU(string(name)) {
			kept.Status.Allocatable[name] = quantity
		}
	}
	return kept, nil
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

const longest = 7 << 20

func read(r *http.Request) ([]byte, func(), error) {
	if r.ContentLength < 0 || r.ContentLength > longest {
		return serve.ReadAll(r)
	}
	buffer := buffers.Get().(*[]byte)
	if int64(cap(*buffer)) < r.ContentLength {
		*buffer = make([]byte, r.ContentLength)
	}
	body := (*buffer)[:r.ContentLength]
	_, err := io.ReadFull(r.Body, body)
	return body, func() { buffers.Put(buffer) }, err
}
