// Load asks a webhook over HTTPS as fast as it answers, checks every answer, and reports latencies.
//
// Connections are kept, as the API server keeps them, and each has one request under way. The first answer to each
// review is reported for the caller to judge; every later one must be the same, but for the uid that it was asked with.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	uid   = "00000000-0000-4000-8000-000000000000" // of every review in the file
	nonce = "nonce-0000000000"                     // where a pod is to be like no other
)

type report struct {
	Requests   int               `json:"requests"`
	Seconds    float64           `json:"seconds"`
	CPU        float64           `json:"cpu"` // of this process: near one per second it is what was measured
	ServerCPU  float64           `json:"server_cpu"`
	Kernel     float64           `json:"server_kernel"` // the part of it that was spent in the kernel
	Errors     []string          `json:"errors"`
	P50        float64           `json:"p50"` // milliseconds
	P90        float64           `json:"p90"`
	P99        float64           `json:"p99"`
	P999       float64           `json:"p999"`
	Longest    float64           `json:"longest"`
	Histogram  [][2]float64      `json:"histogram"` // upper bound in milliseconds, requests
	References []json.RawMessage `json:"references"`
}

// review is a request and what is written over in it.
type review struct {
	request     []byte
	uids, nonce int // where they are; nonce is -1 where there is none
	// the first answer: what is before the uid and what is behind it
	before, after []byte
}

func main() {
	address := flag.String("address", "", "host:port")
	authority := flag.String("ca", "", "PEM file")
	file := flag.String("reviews", "", "a review a line")
	connections := flag.Int("connections", 1, "kept at a time")
	duration := flag.Duration("duration", time.Second, "measured")
	warmup := flag.Duration("warmup", time.Second/4, "before that, not measured")
	pid := flag.Int("pid", 0, "the server's process, to see what it uses")
	rate := flag.Float64("rate", 0, "requests a second, evenly; 0: as fast as answers come")
	flag.Parse()
	pem, err := os.ReadFile(*authority)
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: pool, NextProtos: []string{"http/1.1"}}
	reviews := read(*file, *address)

	first := dial(*address, config)
	references := make([]json.RawMessage, len(reviews))
	for i := range reviews {
		body, err := first.ask(&reviews[i], 1)
		check(err)
		references[i] = bytes.Clone(body)
		before, after, found := bytes.Cut(references[i], first.uid[:])
		if !found {
			log.Fatalf("an answer without the uid: %s", body)
		}
		reviews[i].before, reviews[i].after = before, after
	}
	first.conn.Close()

	nonces.Store(uint64(time.Now().UnixMicro()))
	var stop atomic.Bool
	var measuring atomic.Bool
	clients := make([]*client, *connections)
	for i := range clients {
		clients[i] = dial(*address, config)
	}
	var group sync.WaitGroup
	for i, one := range clients {
		pace := pace{every: time.Duration(float64(*connections) / max(*rate, 1e-9) * 1e9), off: *rate == 0}
		pace.next = time.Now().Add(pace.every * time.Duration(i) / time.Duration(*connections))
		group.Go(func() { one.run(reviews, uint64(i+1)<<40, pace, &measuring, &stop) })
	}
	time.Sleep(*warmup)
	cpu, began := cpuSeconds(), time.Now()
	serverCPU, serverKernel := cpuSecondsOf(*pid)
	measuring.Store(true)
	time.Sleep(*duration)
	measuring.Store(false)
	result := report{Seconds: time.Since(began).Seconds(), CPU: cpuSeconds() - cpu}
	result.ServerCPU, result.Kernel = cpuSecondsOf(*pid)
	result.ServerCPU -= serverCPU
	result.Kernel -= serverKernel
	stop.Store(true)
	group.Wait()
	result.References = references
	result.add(clients)
	check(json.NewEncoder(os.Stdout).Encode(result))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func read(file, address string) []review {
	data, err := os.ReadFile(file)
	check(err)
	var reviews []review
	for line := range bytes.Lines(data) {
		body := bytes.TrimRight(line, "\n")
		request := fmt.Appendf(nil, "POST /mutate?timeout=10s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-apiserver-admission\r\n"+
			"Content-Length: %d\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n",
			address, len(body))
		request = append(request, body...)
		at := bytes.Index(request, []byte(uid))
		if at < 0 {
			log.Fatal("a review without the uid that is to be written over")
		}
		reviews = append(reviews, review{request: request, uids: at, nonce: bytes.Index(request, []byte(nonce))})
	}
	return reviews
}

type client struct {
	conn      *tls.Conn
	reader    *bufio.Reader
	out       []byte
	body      []byte
	uid       [len(uid)]byte
	latencies []int32 // microseconds, in tenths
	err       error
}

func dial(address string, config *tls.Config) *client {
	conn, err := tls.Dial("tcp", address, config)
	check(err)
	return &client{conn: conn, reader: bufio.NewReaderSize(conn, 32<<10), latencies: make([]int32, 0, 1<<16)}
}

type pace struct {
	off   bool
	every time.Duration
	next  time.Time
}

func (c *client) run(reviews []review, number uint64, pace pace, measuring, stop *atomic.Bool) {
	for at := int(number>>40) % len(reviews); !stop.Load(); at = (at + 1) % len(reviews) {
		began := time.Now()
		if !pace.off {
			time.Sleep(time.Until(pace.next))
			began = pace.next // a late answer makes the next one late: that counts
			pace.next = pace.next.Add(pace.every)
		}
		number++
		one := &reviews[at]
		body, err := c.ask(one, number)
		if err == nil && !c.expected(body, one) {
			err = fmt.Errorf("another answer than the first time: %s", body)
		}
		if err != nil {
			c.err = err
			return
		}
		if measuring.Load() {
			c.latencies = append(c.latencies, int32(min(time.Since(began).Nanoseconds()/100, math.MaxInt32)))
		}
	}
	c.conn.Close()
}

func (c *client) expected(body []byte, one *review) bool {
	rest, found := bytes.CutPrefix(body, one.before)
	if !found {
		return false
	}
	rest, found = bytes.CutPrefix(rest, c.uid[:])
	return found && bytes.Equal(rest, one.after)
}

// nonces are like no other on any connection, nor in a run before: they begin with the time in microseconds.
var nonces atomic.Uint64

// ask sends a review under a uid of its own and returns the answer's body, which is good until the next call.
func (c *client) ask(one *review, number uint64) ([]byte, error) {
	c.out = append(c.out[:0], one.request...)
	var digits [16]byte
	hex.Encode(digits[:], []byte{
		byte(number >> 56), byte(number >> 48), byte(number >> 40), byte(number >> 32),
		byte(number >> 24), byte(number >> 16), byte(number >> 8), byte(number),
	})
	copy(c.uid[:], uid)
	copy(c.uid[len(uid)-12:], digits[4:])
	copy(c.out[one.uids:], c.uid[:])
	if one.nonce >= 0 {
		fresh := fmt.Appendf(nil, "%010x", nonces.Add(1)&(1<<40-1))
		copy(c.out[one.nonce+len(nonce)-10:], fresh)
	}
	if _, err := c.conn.Write(c.out); err != nil {
		return nil, err
	}
	return c.response()
}

var lengthHeader = []byte("content-length:")

func (c *client) response() ([]byte, error) {
	length := -1
	for first := true; ; first = false {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first:
			if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
				return nil, fmt.Errorf("answered %s", line)
			}
		case len(line) == 0:
			if length < 0 {
				return nil, errors.New("an answer without a length")
			}
			if cap(c.body) < length {
				c.body = make([]byte, length)
			}
			_, err := io.ReadFull(c.reader, c.body[:length])
			return c.body[:length], err
		case len(line) > len(lengthHeader) && bytes.EqualFold(line[:len(lengthHeader)], lengthHeader):
			length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(lengthHeader):])))
			if err != nil {
				return nil, err
			}
		}
	}
}

// cpuSecondsOf is the processor time of another process, and the part of it that was spent in the kernel, which counts
// in hundredths of a second.
func cpuSecondsOf(pid int) (all, inKernel float64) {
	if pid == 0 {
		return 0, 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	check(err)
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	user, err := strconv.Atoi(string(fields[11]))
	check(err)
	system, err := strconv.Atoi(string(fields[12]))
	check(err)
	return float64(user+system) / 100, float64(system) / 100
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
