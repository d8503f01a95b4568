// Informer holds nodes and pods as client-go does, and says when it has them all.
package main

import (
	"fmt"
	"log"
	"os"

	"k8s.io/client-go/informers"
	"tessera.example/benchmarks/peers/cluster"
)

func main() {
	client, err := cluster.Client(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	factory.Core().V1().Nodes().Informer()
	factory.Core().V1().Pods().Informer()
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	fmt.Println("ready")
	<-stop
}
