package fallback

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const recordPath = "/metadata/annotations/gpu-webhook.k8s.io~1fallback"

// Operation is one operation of a JSON patch; Value is nil for a removal.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Verdict is the outcome of one admission.
type Verdict struct {
	Allowed    bool
	Message    string // of a rejection
	Operations []Operation
	Warnings   []string
	Audit      string
}

type step int

const (
	asAsked step = iota
	smaller
	larger
	wholeGPU
)

type candidate struct {
	resource string
	step     step
}

// View is where offers come from.
type View interface {
	// Usable returns the distinct offers of the nodes that the pod could ever be placed on.
	Usable(pod *Pod) []Offer
	// Anywhere returns the distinct offers of all nodes.
	Anywhere() []Offer
}

// Decide decides about one pod.
func Decide(pod *Pod, view View) Verdict {
	asked := askedProfiles(pod)
	if len(asked) == 0 {
		return complete(pod, nil)
	}
	usable := view.Usable(pod)
	lists := make([][]candidate, len(asked))
	for i, resource := range asked {
		lists[i] = candidates(resource, usable, pod.Policy)
	}
	search := search{pod: pod, asked: asked, lists: lists, usable: usable}
	chosen := search.best()
	if chosen == nil {
		return unmatched(&search, view)
	}
	by := make([][2]string, 0, len(asked))
	for i, resource := range asked {
		if chosen[i] != resource {
			by = append(by, [2]string{resource, chosen[i]})
		}
	}
	return complete(pod, by)
}

func askedProfiles(pod *Pod) []string {
	var found []string
	for _, list := range [][]Container{pod.Init, pod.Containers} {
		for i := range list {
			for _, section := range []Amounts{list[i].Requests, list[i].Limits} {
				for _, amount := range section {
					if amount.Resource == WholeGPU || slices.Contains(found, amount.Resource) {
						continue
					}
					if list[i].Asked(amount.Resource) != 0 {
						found = append(found, amount.Resource)
					}
				}
			}
		}
	}
	return found
}

func candidates(resource string, usable []Offer, policy string) []candidate {
	found := []candidate{{resource, asAsked}}
	if policy == "never" {
		return found
	}
	profile, _ := ProfileOf(resource)
	type offered struct {
		Profile
		resource string
	}
	var all []offered
	for _, most := range most(usable) {
		if other, is := ProfileOf(most.Resource); is && other != profile {
			all = append(all, offered{other, most.Resource})
		}
	}
	slices.SortFunc(all, func(x, y offered) int { return x.Compare(y.Profile) })
	for _, one := range slices.Backward(all) {
		if one.Compare(profile) < 0 && policy != "larger" {
			found = append(found, candidate{one.resource, smaller})
		}
	}
	for _, one := range all {
		if one.Compare(profile) > 0 && policy != "smaller" {
			found = append(found, candidate{one.resource, larger})
		}
	}
	return append(found, candidate{WholeGPU, wholeGPU})
}

type search struct {
	pod    *Pod
	asked  []string
	lists  [][]candidate
	usable []Offer
}

func (s *search) best() []string {
	for worst := asAsked; worst <= wholeGPU; worst++ {
		for changes := range len(s.asked) + 1 {
			if chosen := s.combine(worst, changes, nil, asAsked); chosen != nil {
				return chosen
			}
		}
	}
	return nil
}

func (s *search) combine(worst step, changes int, chosen []string, used step) []string {
	at := len(chosen)
	if at == len(s.asked) {
		if used == worst && changes == 0 {
			return chosen
		}
		return nil
	}
	for _, candidate := range s.lists[at] {
		changed := min(int(candidate.step), 1)
		if candidate.step > worst || changed > changes {
			continue
		}
		more := append(slices.Clip(chosen), candidate.resource)
		if !s.fits(more) {
			continue
		}
		if found := s.combine(worst, changes-changed, more, max(used, candidate.step)); found != nil {
			return found
		}
	}
	return nil
}

func (s *search) fits(chosen []string) bool {
	var need Amounts
	for _, to := range append(slices.Clip(chosen), WholeGPU) {
		if _, found := need.Get(to); !found {
			need = append(need, Amount{to, s.need(chosen, to)})
		}
	}
	return slices.ContainsFunc(s.usable, func(offer Offer) bool {
		for _, one := range need {
			if one.Count > 0 && offer.Count(one.Resource) < one.Count {
				return false
			}
		}
		return true
	})
}

// need is what the pod needs at most at one time of a resource, counted as the scheduler does.
func (s *search) need(chosen []string, to string) int64 {
	amount := func(container *Container) (sum int64) {
		for i, one := range chosen {
			if one == to {
				sum += container.Asked(s.asked[i])
			}
		}
		if to == WholeGPU {
			sum += container.Asked(to)
		}
		return sum
	}
	var sidecars, most, regular int64
	for i := range s.pod.Init {
		here := amount(&s.pod.Init[i])
		if s.pod.Init[i].Sidecar {
			sidecars += here
			here = 0
		}
		most = max(most, sidecars+here)
	}
	for i := range s.pod.Containers {
		regular += amount(&s.pod.Containers[i])
	}
	return max(most, sidecars+regular)
}

func most(offers []Offer) Amounts {
	var found Amounts
	for _, offer := range offers {
		for _, one := range offer {
			at := slices.IndexFunc(found, func(a Amount) bool { return a.Resource == one.Resource })
			if at < 0 {
				found = append(found, one)
			} else {
				found[at].Count = max(found[at].Count, one.Count)
			}
		}
	}
	found.Sort()
	return found
}

func unmatched(s *search, view View) Verdict {
	var asked, tried []string
	for _, resource := range s.asked {
		need := (&search{pod: s.pod, asked: []string{resource}}).need([]string{resource}, resource)
		asked = append(asked, fmt.Sprintf("%s: %d", resource, need))
	}
	for _, list := range s.lists {
		for _, one := range list {
			if name := Short(one.resource); one.step != asAsked && !slices.Contains(tried, name) {
				tried = append(tried, name)
			}
		}
	}
	words := strings.Join(tried, ", ")
	switch words {
	case "":
		words = "nothing else, since nothing else is allowed"
	case "gpu":
		words += " and found no other profile"
	}
	usable, anywhere := listed(most(s.usable)), listed(most(view.Anywhere()))
	where := "the nodes that this pod can use offer " + usable
	if usable != anywhere {
		where += ", the whole cluster " + anywhere
	}
	return Verdict{Message: fmt.Sprintf(
		"asked for %s, which no node that this pod can use offers; tried %s; %s", strings.Join(asked, ", "), words, where)}
}

func listed(amounts Amounts) string {
	if len(amounts) == 0 {
		return "no GPU at all"
	}
	parts := make([]string, len(amounts))
	for i, one := range amounts {
		parts[i] = fmt.Sprintf("%s (up to %d a node)", Short(one.Resource), one.Count)
	}
	return strings.Join(parts, ", ")
}

// complete writes the patch: resources replaced, limits completed, the record.
func complete(pod *Pod, by [][2]string) Verdict {
	verdict := Verdict{Allowed: true}
	made := map[string]bool{}
	create := func(path string, there bool) {
		if !there && !made[path] {
			made[path] = true
			verdict.Operations = append(verdict.Operations, Operation{"add", path, struct{}{}})
		}
	}
	for _, list := range []struct {
		name       string
		containers []Container
	}{{"initContainers", pod.Init}, {"containers", pod.Containers}} {
		for i := range list.containers {
			container := &list.containers[i]
			resources := "/spec/" + list.name + "/" + strconv.Itoa(i) + "/resources"
			requests, limits := replaced(container.Requests, by), replaced(container.Limits, by)
			for _, one := range requests {
				if _, found := limits.Get(one.Resource); !found {
					limits = append(limits, one)
				}
			}
			section := func(name string, there bool, before, after Amounts) {
				path := resources + "/" + name
				open := func() {
					create(resources, container.HasResources)
					create(path, there)
				}
				for _, one := range before {
					if _, found := after.Get(one.Resource); !found {
						open()
						verdict.Operations = append(verdict.Operations, Operation{Op: "remove", Path: path + "/" + escape(one.Resource)})
					}
				}
				for _, one := range after {
					if count, found := before.Get(one.Resource); !found || count != one.Count {
						open()
						verdict.Operations = append(verdict.Operations,
							Operation{"add", path + "/" + escape(one.Resource), strconv.FormatInt(one.Count, 10)})
					}
				}
			}
			section("requests", container.HasRequests, container.Requests, requests)
			section("limits", container.HasLimits, container.Limits, limits)
		}
	}
	if len(by) > 0 {
		entries := make([]string, len(by))
		for i, one := range by {
			from, to := Short(one[0]), Short(one[1])
			entries[i] = from + "->" + to
			verdict.Warnings = append(verdict.Warnings,
				fit("GPU fallback "+entries[i]+": no node that this pod can use offers "+from+" as asked"))
		}
		verdict.Audit = strings.Join(entries, ",")
		record := verdict.Audit
		if pod.Record != "" {
			record = pod.Record + "," + record
		}
		create("/metadata", pod.HasMetadata)
		create("/metadata/annotations", pod.HasAnnotations)
		verdict.Operations = append(verdict.Operations, Operation{"add", recordPath, record})
	}
	return verdict
}

func replaced(amounts Amounts, by [][2]string) Amounts {
	after := make(Amounts, 0, len(amounts)+1)
	for _, one := range amounts {
		if !slices.ContainsFunc(by, func(pair [2]string) bool { return pair[0] == one.Resource }) {
			after = append(after, one)
		}
	}
	for _, pair := range by {
		count, found := amounts.Get(pair[0])
		if !found {
			continue
		}
		at := slices.IndexFunc(after, func(a Amount) bool { return a.Resource == pair[1] })
		if at < 0 {
			after = append(after, Amount{pair[1], count})
		} else {
			after[at].Count += count
		}
	}
	return after
}

func escape(key string) string { return strings.ReplaceAll(key, "/", "~1") }

func fit(warning string) string {
	if len(warning) <= 120 {
		return warning
	}
	return warning[:119] + "…"
}
