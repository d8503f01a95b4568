// Decision answers reviews in process, as the usual and the partial webhook do: the answers to compare, or the time
// that one takes.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"

	"tessera.example/benchmarks/peers/cluster"
	"tessera.example/benchmarks/peers/codec"
	"tessera.example/benchmarks/peers/partial"
)

func main() {
	nodes := flag.String("nodes", "", "a node a line")
	reviews := flag.String("reviews", "", "a review a line")
	which := flag.String("as", "usual", "usual or partial")
	duration := flag.Duration("duration", 0, "measure for so long and print nanoseconds; 0: print the answers")
	flag.Parse()
	answer := codec.Answer
	if *which == "partial" {
		answer = partial.Answer
	}
	var parsed []*corev1.Node
	for _, line := range lines(*nodes) {
		node := &corev1.Node{}
		check(json.Unmarshal(line, node))
		parsed = append(parsed, node)
	}
	view := cluster.Of(func() []*corev1.Node { return parsed })
	bodies := lines(*reviews)
	if *duration == 0 {
		out := bufio.NewWriter(os.Stdout)
		defer out.Flush()
		for _, body := range bodies {
			response, err := answer(body, view)
			check(err)
			out.Write(response)
			out.WriteByte('\n')
		}
		return
	}
	best := time.Duration(math.MaxInt64) // of the passes over all: what is added to it is not ours
	for deadline := time.Now().Add(*duration); time.Now().Before(deadline); {
		began := time.Now()
		for _, body := range bodies {
			_, err := answer(body, view)
			check(err)
		}
		best = min(best, time.Since(began))
	}
	fmt.Println(best.Nanoseconds() / int64(len(bodies)))
}

func lines(file string) [][]byte {
	data, err := os.ReadFile(file)
	check(err)
	return bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
