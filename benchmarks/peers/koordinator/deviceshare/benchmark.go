// Built together with a copy of Koordinator's package of this name, whose decisions have no exported
// way in.

package deviceshare

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	schedulerconfig "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
)

// A benchmarkRequest is a node with what its pods hold, and a pod; Calls is how often to decide it.
type benchmarkRequest struct {
	Calls     int
	Device    schedulingv1alpha1.Device
	Allocated []apiext.DeviceAllocations
	Pod       corev1.Pod
	Strategy  schedulerconfig.ScoringStrategyType
}

// An Answer has the nanoseconds of each call, and what the last one decided.
type Answer struct {
	Nanoseconds []int64                  `json:"ns"`
	Allocation  apiext.DeviceAllocations `json:"allocation,omitempty"`
	Error       string                   `json:"error,omitempty"`
}

// Decide answers one request as JSON, as the Reserve phase does. Preparation of node and pod
// is not timed.
func Decide(line []byte) (Answer, error) {
	var request benchmarkRequest
	if err := json.Unmarshal(line, &request); err != nil {
		return Answer{}, err
	}
	cache := newNodeDeviceCache()
	cache.updateNodeDevice("node", &request.Device)
	held := cache.getNodeDevice("node", false)
	for i, allocations := range request.Allocated {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name = "default", fmt.Sprint("pod-", i)
		held.updateCacheUsed(allocations, pod, true)
	}
	node := &corev1.Node{}
	node.Name = "node"
	state, status := preparePod(&request.Pod, nil, nil)
	if !status.IsSuccess() {
		return Answer{}, status.AsError()
	}
	var took []int64
	var allocation apiext.DeviceAllocations
	for i := 0; i < request.Calls; i++ {
		start := time.Now()
		allocator := &AutopilotAllocator{
			state:      state,
			nodeDevice: held,
			node:       node,
			pod:        &request.Pod,
			scorer:     scorerOf(request.Strategy),
		}
		preemptible := map[schedulingv1alpha1.DeviceType]deviceResources{}
		allocation, status = allocator.Allocate(nil, nil, nil, preemptible)
		if !status.IsSuccess() {
			return Answer{}, status.AsError()
		}
		if err := fillGPUTotalMem(allocation, held); err != nil {
			return Answer{}, err
		}
		took = append(took, time.Since(start).Nanoseconds())
	}
	return Answer{Nanoseconds: took, Allocation: allocation}, nil
}

var scorers = map[schedulerconfig.ScoringStrategyType]*resourceAllocationScorer{}

func scorerOf(strategy schedulerconfig.ScoringStrategyType) *resourceAllocationScorer {
	known, ok := scorers[strategy]
	if make := deviceResourceStrategyTypeMap[strategy]; !ok && make != nil {
		var weighed []schedconfig.ResourceSpec
		for _, name := range []corev1.ResourceName{
			apiext.ResourceGPUMemoryRatio, apiext.ResourceGPUMemory, apiext.ResourceRDMA, apiext.ResourceFPGA,
		} {
			weighed = append(weighed, schedconfig.ResourceSpec{Name: string(name), Weight: 1})
		}
		known = make(&schedulerconfig.DeviceShareArgs{
			ScoringStrategy: &schedulerconfig.ScoringStrategy{Type: strategy, Resources: weighed},
		})
		scorers[strategy] = known
	}
	return known
}
