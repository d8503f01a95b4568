// Package serve is the HTTPS server of the peers: net/http as it is, HTTP/1.1 as the API server speaks it to webhooks.
package serve

import (
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Flags are the same for all peers.
type Flags struct{ Kubeconfig, listen, certificate, key string }

// Parse reads the command line.
func Parse() *Flags {
	flags := &Flags{}
	flag.StringVar(&flags.Kubeconfig, "kubeconfig", "", "the cluster")
	flag.StringVar(&flags.listen, "listen", "127.0.0.1:0", "address")
	flag.StringVar(&flags.certificate, "tls-cert", "", "PEM file")
	flag.StringVar(&flags.key, "tls-key", "", "PEM file")
	flag.Parse()
	return flags
}

// Handler answers a review.
type Handler func(body []byte) ([]byte, error)

// Run serves until it is killed; the address is printed once it listens.
func Run(flags *Flags, ready func() bool, read func(*http.Request) ([]byte, func(), error), answer Handler) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("POST /mutate", func(w http.ResponseWriter, r *http.Request) {
		body, done, err := read(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		defer done()
		response, err := answer(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(response)))
		w.Write(response)
	})
	listener, err := net.Listen("tcp", flags.listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       120 * time.Second,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12},
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	log.Fatal(server.ServeTLS(listener, flags.certificate, flags.key))
}

// ReadAll is how a body is usually read.
func ReadAll(r *http.Request) ([]byte, func(), error) {
	body, err := io.ReadAll(r.Body)
	return body, func() {}, err
}
