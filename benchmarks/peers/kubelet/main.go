// Decides requests with the code of a kubelet and reports the time of each call. A request is a line
// of JSON on standard input, its answer a line of JSON on standard output.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/go-logr/logr"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/utils/cpuset"
)

// The choice of CPUs by the static policy. The exported function, Allocate, also updates the state.
//
//go:linkname takePacked k8s.io/kubernetes/pkg/kubelet/cm/cpumanager.takeByTopologyNUMAPacked
func takePacked(
	logger logr.Logger,
	topo *topology.CPUTopology,
	available cpuset.CPUSet,
	count int,
	sorting cpumanager.CPUSortingStrategy,
	preferAlignByUncoreCache bool,
) (cpuset.CPUSet, error)

type cpu struct{ ID, Core, L3, Socket, Node int }

type hint struct {
	Mask      []int
	Preferred bool
}

// A request has Take or Merge; Calls is how often to decide it.
type request struct {
	Calls int
	Take  *struct {
		CPUs      []cpu
		Available string
		Need      int
	}
	Merge *struct {
		NUMANodes []int
		Hints     [][]hint // each of a provider of its own; the policy is restricted
	}
}

// Nanoseconds of each call, and what the last one decided.
type answer struct {
	Nanoseconds []int64 `json:"ns"`
	Cpuset      string  `json:"cpuset,omitempty"`
	Mask        []int   `json:"mask,omitempty"`
	Preferred   bool    `json:"preferred,omitempty"`
	Admit       bool    `json:"admit,omitempty"`
	Error       string  `json:"error,omitempty"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		given, err := decide(lines.Bytes())
		if err != nil {
			given.Error = err.Error()
		}
		if err := answers.Encode(given); err != nil {
			fail(err)
		}
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func decide(line []byte) (answer, error) {
	var req request
	if err := json.Unmarshal(line, &req); err != nil {
		return answer{}, err
	}
	switch {
	case req.Calls < 1:
		return answer{}, fmt.Errorf("calls: %d", req.Calls)
	case req.Take != nil:
		return take(req)
	case req.Merge != nil:
		return merge(req)
	}
	return answer{}, fmt.Errorf("neither take nor merge")
}

func take(req request) (answer, error) {
	available, err := cpuset.Parse(req.Take.Available)
	if err != nil {
		return answer{}, err
	}
	topo := machine(req.Take.CPUs)
	var taken cpuset.CPUSet
	took := timed(req.Calls, func() {
		taken, err = takePacked(
			logr.Discard(), topo, available, req.Take.Need,
			cpumanager.CPUSortingStrategyPacked, false,
		)
	})
	return answer{Nanoseconds: took, Cpuset: taken.String()}, err
}

func machine(cpus []cpu) *topology.CPUTopology {
	details := topology.CPUDetails{}
	for _, each := range cpus {
		details[each.ID] = topology.CPUInfo{
			NUMANodeID:    each.Node,
			SocketID:      each.Socket,
			CoreID:        each.Core,
			UncoreCacheID: each.L3,
		}
	}
	return &topology.CPUTopology{
		NumCPUs:        len(cpus),
		NumCores:       details.Cores().Size(),
		NumUncoreCache: details.UncoreCaches().Size(),
		NumSockets:     details.Sockets().Size(),
		NumNUMANodes:   details.NUMANodes().Size(),
		CPUDetails:     details,
	}
}

func merge(req request) (answer, error) {
	policy := topologymanager.NewRestrictedPolicy(
		&topologymanager.NUMAInfo{Nodes: req.Merge.NUMANodes}, topologymanager.PolicyOptions{},
	)
	var providers []map[string][]topologymanager.TopologyHint
	for index, hints := range req.Merge.Hints {
		var made []topologymanager.TopologyHint
		for _, each := range hints {
			mask, err := bitmask.NewBitMask(each.Mask...)
			if err != nil {
				return answer{}, err
			}
			made = append(made, topologymanager.TopologyHint{
				NUMANodeAffinity: mask, Preferred: each.Preferred,
			})
		}
		providers = append(providers, map[string][]topologymanager.TopologyHint{
			fmt.Sprintf("resource-%d", index): made,
		})
	}
	var best topologymanager.TopologyHint
	var admit bool
	took := timed(req.Calls, func() { best, admit = policy.Merge(logr.Discard(), providers) })
	given := answer{Nanoseconds: took, Preferred: best.Preferred, Admit: admit}
	if best.NUMANodeAffinity != nil {
		given.Mask = best.NUMANodeAffinity.GetBits()
	}
	return given, nil
}

func timed(calls int, call func()) []int64 {
	took := make([]int64, calls)
	for index := range took {
		start := time.Now()
		call()
		took[index] = time.Since(start).Nanoseconds()
	}
	return took
}
