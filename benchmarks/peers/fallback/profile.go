package fallback

import (
	"cmp"
	"strconv"
	"strings"
)

const (
	MigPrefix = "nvidia.com/mig-"
	WholeGPU  = "nvidia.com/gpu"
)

// Profile is a MIG profile, 1g.10gb or 1g.10gb.me.
type Profile struct {
	Compute, Memory int
	Extras          string
}

// ProfileOf reads the profile behind a resource name.
func ProfileOf(resource string) (Profile, bool) {
	text, found := strings.CutPrefix(resource, MigPrefix)
	if !found {
		return Profile{}, false
	}
	compute, rest, found := strings.Cut(text, "g.")
	if !found {
		return Profile{}, false
	}
	memory, extras, found := strings.Cut(rest, "gb")
	if !found {
		return Profile{}, false
	}
	c, err := strconv.Atoi(compute)
	if err != nil {
		return Profile{}, false
	}
	m, err := strconv.Atoi(memory)
	return Profile{c, m, extras}, err == nil
}

// Compare orders profiles by memory, then compute, then extra engines.
func (p Profile) Compare(other Profile) int {
	return cmp.Or(
		cmp.Compare(p.Memory, other.Memory),
		cmp.Compare(p.Compute, other.Compute),
		cmp.Compare(len(p.Extras), len(other.Extras)),
		cmp.Compare(p.Extras, other.Extras),
	)
}

// IsGPU says whether fallback may choose a resource.
func IsGPU(resource string) bool {
	if resource == WholeGPU {
		return true
	}
	_, is := ProfileOf(resource)
	return is
}

// Short is a resource as records and messages name it.
func Short(resource string) string {
	if resource == WholeGPU {
		return "gpu"
	}
	return strings.TrimPrefix(resource, MigPrefix)
}
