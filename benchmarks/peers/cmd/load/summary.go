package main

import (
	"math"
	"slices"
)

// A histogram's bounds grow by a tenth: fine enough for a picture.
const growth = 1.1

// add adds up what the clients have seen.
func (r *report) add(clients []*client) {
	r.Errors = []string{}
	var all []int32
	for _, one := range clients {
		all = append(all, one.latencies...)
		if one.err != nil {
			r.Errors = append(r.Errors, one.err.Error())
		}
	}
	slices.Sort(all)
	r.Requests = len(all)
	at := func(share float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return milliseconds(all[min(int(share*float64(len(all))), len(all)-1)])
	}
	r.P50, r.P90, r.P99, r.P999, r.Longest = at(.5), at(.9), at(.99), at(.999), at(1)
	r.Histogram = histogram(all)
}

func milliseconds(tenths int32) float64 { return float64(tenths) / 10_000 }

func histogram(sorted []int32) [][2]float64 {
	found := [][2]float64{}
	for start := 0; start < len(sorted); {
		power := math.Ceil(math.Log(max(milliseconds(sorted[start]), 1e-3)) / math.Log(growth))
		bound := math.Pow(growth, power)
		end := start
		for end < len(sorted) && milliseconds(sorted[end]) <= bound {
			end++
		}
		end = max(end, start+1)
		found = append(found, [2]float64{bound, float64(end - start)})
		start = end
	}
	return found
}
