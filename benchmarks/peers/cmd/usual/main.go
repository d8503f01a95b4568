// Usual is a webhook as most are written in Go: client-go's informer on nodes, reviews and pods decoded whole with
// the Kubernetes codec.
package main

import (
	"context"
	"log"

	"tessera.example/benchmarks/peers/cluster"
	"tessera.example/benchmarks/peers/codec"
	"tessera.example/benchmarks/peers/serve"
)

func main() {
	flags := serve.Parse()
	client, err := cluster.Client(flags.Kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	view, err := cluster.Watch(context.Background(), client, nil)
	if err != nil {
		log.Fatal(err)
	}
	serve.Run(flags, view.Ready, serve.ReadAll, func(body []byte) ([]byte, error) { return codec.Answer(body, view) })
}
