// Apiserver stands in for a Kubernetes API server: objects from files, listed and watched, fast enough never to be
// what is measured. It can make a storm of node updates.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// collection is one kind's objects, as JSON with kind and apiVersion in front, as events have them.
type collection struct {
	kind string

	mutex    sync.Mutex
	objects  [][]byte
	version  int
	watchers map[chan []byte]struct{}
}

func (c *collection) head() string { return fmt.Sprintf(`{"kind":%q,"apiVersion":"v1",`, c.kind) }

func load(kind, file string) *collection {
	c := &collection{kind: kind, version: 1_000_000, watchers: map[chan []byte]struct{}{}}
	if file == "" {
		return c
	}
	data, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		line = bytes.TrimRight(line, "\n")
		if !bytes.HasPrefix(line, []byte(c.head())) {
			log.Fatalf("%s: a line that does not begin with %s", file, c.head())
		}
		c.objects = append(c.objects, line)
	}
	return c
}

func (c *collection) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	if watch := query.Get("watch"); watch == "true" || watch == "1" {
		c.watch(w, r, query.Get("sendInitialEvents") == "true")
		return
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	if query.Get("resourceVersion") == "0" {
		limit = 0 // from its cache an API server answers in one piece
	}
	start, _ := strconv.Atoi(query.Get("continue"))
	c.list(w, start, limit)
}

func (c *collection) list(w http.ResponseWriter, start, limit int) {
	c.mutex.Lock()
	objects, version := slices.Clone(c.objects[min(start, len(c.objects)):]), c.version
	c.mutex.Unlock()
	next := ""
	if limit > 0 && limit < len(objects) {
		objects = objects[:limit]
		next = fmt.Sprintf(`,"continue":"%d"`, start+limit)
	}
	out := bufio.NewWriterSize(w, 64<<10)
	defer out.Flush()
	fmt.Fprintf(out, `{"kind":"%sList","apiVersion":"v1","metadata":{"resourceVersion":"%d"%s},"items":[`, c.kind, version, next)
	for i, object := range objects {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('{')
		out.Write(object[len(c.head()):]) // items of a list go without kind and apiVersion
	}
	out.WriteString("]}\n")
}

func (c *collection) watch(w http.ResponseWriter, r *http.Request, initial bool) {
	events := make(chan []byte, 100_000)
	c.mutex.Lock()
	objects, version := slices.Clone(c.objects), c.version
	c.watchers[events] = struct{}{}
	c.mutex.Unlock()
	defer func() {
		c.mutex.Lock()
		delete(c.watchers, events)
		c.mutex.Unlock()
	}()
	out := bufio.NewWriterSize(w, 64<<10)
	flush := func() {
		out.Flush()
		w.(http.Flusher).Flush()
	}
	bookmark := func(version int, annotations string) {
		fmt.Fprintf(out, `{"type":"BOOKMARK","object":%s"metadata":{"resourceVersion":"%d"%s}}}`+"\n", c.head(), version, annotations)
	}
	if initial {
		for _, object := range objects {
			fmt.Fprintf(out, `{"type":"ADDED","object":%s}`+"\n", object)
		}
		bookmark(version, `,"annotations":{"k8s.io/initial-events-end":"true"}`)
	}
	flush()
	bookmarks := time.NewTicker(30 * time.Second)
	defer bookmarks.Stop()
	for {
		select {
		case event := <-events:
			out.Write(event)
			for range len(events) {
				out.Write(<-events)
			}
		case <-bookmarks.C:
			c.mutex.Lock()
			version := c.version
			c.mutex.Unlock()
			bookmark(version, "")
		case <-r.Context().Done():
			return
		}
		flush()
	}
}

// put stores an object under a new version and tells the watchers.
func (c *collection) put(at int, object []byte) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.objects[at] = c.tell("MODIFIED", object) // readers have copies
}

// tell the watchers of an object, under a new version.
func (c *collection) tell(what string, object []byte) []byte {
	c.version++
	object = withVersion(object, c.version)
	event := fmt.Appendf(nil, `{"type":%q,"object":%s}`+"\n", what, object)
	for watcher := range c.watchers {
		watcher <- event
	}
	return object
}

func withVersion(object []byte, version int) []byte {
	const key = `"resourceVersion":"`
	start := bytes.Index(object, []byte(key)) + len(key)
	end := start + bytes.IndexByte(object[start:], '"')
	return bytes.Join([][]byte{object[:start], strconv.AppendInt(nil, int64(version), 10), object[end:]}, nil)
}

// storm updates nodes: heartbeats, and of every so many one that changes what a node offers, and back. Or pods: they end, others come in
// their place, wait, are bound, run.
type storm struct {
	nodes *collection
	pods  *collection
	stop  chan struct{}
	mutex sync.Mutex
}

func (s *storm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.stop != nil {
		close(s.stop)
		s.stop = nil
	}
	if r.Method == http.MethodDelete {
		return
	}
	query := r.URL.Query()
	if perSecond, err := strconv.Atoi(query.Get("podsPerSecond")); err == nil && perSecond > 0 {
		s.stop = make(chan struct{})
		go s.churn(perSecond, s.stop)
		return
	}
	perMinute, err := strconv.Atoi(query.Get("perMinute"))
	every, _ := strconv.Atoi(query.Get("every"))
	if err != nil || perMinute <= 0 {
		http.Error(w, "perMinute: a positive number", http.StatusBadRequest)
		return
	}
	s.stop = make(chan struct{})
	go s.blow(time.Minute/time.Duration(perMinute), max(every, 1), []byte(query.Get("from")), []byte(query.Get("to")), s.stop)
}

func (s *storm) blow(pause time.Duration, every int, from, to []byte, stop chan struct{}) {
	ticks := time.NewTicker(pause)
	defer ticks.Stop()
	const beat = `"lastHeartbeatTime":"`
	changed, original := -1, []byte(nil)
	for number := 0; ; number++ {
		select {
		case <-stop:
			if changed >= 0 {
				s.nodes.put(changed, original)
			}
			return
		case now := <-ticks.C:
			at := number % len(s.nodes.objects)
			if number%every == 0 {
				if changed >= 0 {
					s.nodes.put(changed, original)
					changed = -1
					continue
				}
				for !bytes.Contains(s.nodes.objects[at], from) {
					at = (at + 1) % len(s.nodes.objects)
				}
				changed, original = at, s.nodes.objects[at]
				s.nodes.put(at, bytes.ReplaceAll(original, from, to))
				continue
			}
			if at == changed {
				continue
			}
			old := s.nodes.objects[at]
			start := bytes.Index(old, []byte(beat)) + len(beat)
			stamp := now.UTC().Format(time.RFC3339)
			s.nodes.put(at, bytes.ReplaceAll(old, old[start:start+len(stamp)], []byte(stamp)))
		}
	}
}

const atATime = 500 // pods that wait at the same time

// churn has pods live their lives, so many events a second: of five three change what is free.
func (s *storm) churn(perSecond int, stop chan struct{}) {
	const pause = 10 * time.Millisecond
	ticks := time.NewTicker(pause)
	defer ticks.Stop()
	begun, sent := time.Now(), 0
	for first := 0; ; first = (first + atATime) % len(s.pods.objects) {
		some := s.pods.objects[first:min(first+atATime, len(s.pods.objects))]
		for _, step := range []struct{ what, phase, bound string }{
			{"DELETED", "Running", "yes"}, {"ADDED", "Pending", ""}, {"MODIFIED", "Pending", "yes"}, {"MODIFIED", "Running", "yes"}, {"MODIFIED", "Running", "yes"},
		} {
			for _, pod := range some {
				for sent >= int(time.Since(begun).Seconds()*float64(perSecond)) {
					select {
					case <-stop:
						return
					case <-ticks.C:
					}
				}
				pod = bytes.Replace(pod, []byte(`"phase":"Running"`), []byte(`"phase":"`+step.phase+`"`), 1)
				if step.bound == "" {
					pod = unbound(pod)
				}
				s.pods.mutex.Lock()
				s.pods.tell(step.what, pod)
				s.pods.mutex.Unlock()
				sent++
			}
		}
	}
}

// unbound is a pod before the scheduler has seen it.
func unbound(pod []byte) []byte {
	const key = `,"nodeName":"`
	start := bytes.Index(pod, []byte(key))
	if start < 0 {
		return pod
	}
	end := start + len(key) + bytes.IndexByte(pod[start+len(key):], '"') + 1
	return bytes.Join([][]byte{pod[:start], pod[end:]}, nil)
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address")
	certificate := flag.String("tls-cert", "", "PEM file")
	key := flag.String("tls-key", "", "PEM file")
	nodes := flag.String("nodes", "", "a node a line")
	pods := flag.String("pods", "", "a pod a line")
	namespaces := flag.String("namespaces", "", "a namespace a line")
	flag.Parse()
	collections := map[string]*collection{
		"nodes": load("Node", *nodes), "pods": load("Pod", *pods), "namespaces": load("Namespace", *namespaces),
	}
	mux := http.NewServeMux()
	for name, one := range collections {
		mux.Handle("GET /api/v1/"+name, one)
	}
	mux.Handle("/storm", &storm{nodes: collections["nodes"], pods: collections["pods"]})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":%q}`,
			strings.TrimSpace(r.Method+" "+r.URL.Path)+": not here")
	})
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	log.Fatal(http.ServeTLS(listener, mux, *certificate, *key))
}
