// Naive is a webhook that asks the API server for all nodes at every admission.
package main

import (
	"context"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"tessera.example/benchmarks/peers/cluster"
	"tessera.example/benchmarks/peers/codec"
	"tessera.example/benchmarks/peers/fallback"
	"tessera.example/benchmarks/peers/serve"
)

func main() {
	flags := serve.Parse()
	client, err := cluster.Client(flags.Kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	always := func() bool { return true }
	serve.Run(flags, always, serve.ReadAll, func(body []byte) ([]byte, error) {
		return codec.Answer(body, &asking{client: client})
	})
}

// asking is the view of one admission.
type asking struct {
	client *kubernetes.Clientset
	nodes  []*corev1.Node
}

func (a *asking) offers(eligible func(*fallback.Node) bool) []fallback.Offer {
	if a.nodes == nil {
		list, err := a.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			log.Print(err)
			return nil
		}
		for i := range list.Items {
			a.nodes = append(a.nodes, &list.Items[i])
		}
	}
	return cluster.Offers(a.nodes, eligible)
}

func (a *asking) Usable(pod *fallback.Pod) []fallback.Offer { return a.offers(pod.Eligible) }

func (a *asking) Anywhere() []fallback.Offer {
	return a.offers(func(*fallback.Node) bool { return true })
}
