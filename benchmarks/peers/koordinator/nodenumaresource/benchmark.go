// Built together with a copy of Koordinator's package of this name, whose plugin can't be made
// without a cluster from outside.

package nodenumaresource

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	nrtv1alpha1 "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwktype "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/apis/extension"
	schedulingconfig "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/topologymanager"
	"github.com/koordinator-sh/koordinator/pkg/util/cpuset"
)

// A benchmarkRequest is a node with what its pods hold, and a pod; Calls is how often to filter it.
type benchmarkRequest struct {
	Calls    int
	Node     corev1.Node
	Topology nrtv1alpha1.NodeResourceTopology
	Held     []extension.ResourceStatus
	Pod      corev1.Pod
}

// An Answer has the nanoseconds of each call, and the NUMA nodes that the last one chose.
type Answer struct {
	Nanoseconds []int64 `json:"ns"`
	NUMANodes   []int   `json:"numaNodes"`
	Error       string  `json:"error,omitempty"`
}

// Decide answers one request as JSON, as the Filter phase does for one node. What is known of the
// node, and read of the pod once for all nodes, is not timed.
func Decide(line []byte) (Answer, error) {
	var request benchmarkRequest
	if err := json.Unmarshal(line, &request); err != nil {
		return Answer{}, err
	}
	plugin, err := pluginFor(&request)
	if err != nil {
		return Answer{}, err
	}
	info := framework.NewNodeInfo()
	info.SetNode(&request.Node)
	ctx := context.Background()
	answer := Answer{NUMANodes: []int{}}
	for i := 0; i < request.Calls; i++ {
		state := framework.NewCycleState()
		if _, status := plugin.PreFilter(ctx, state, &request.Pod, nil); !status.IsSuccess() {
			return Answer{}, status.AsError()
		}
		start := time.Now()
		status := plugin.Filter(ctx, state, &request.Pod, info)
		answer.Nanoseconds = append(answer.Nanoseconds, time.Since(start).Nanoseconds())
		if !status.IsSuccess() {
			return Answer{}, status.AsError()
		}
		hint, _ := topologymanager.GetStore(state).GetAffinity(request.Node.Name)
		if hint.NUMANodeAffinity != nil {
			answer.NUMANodes = hint.NUMANodeAffinity.GetBits()
		}
	}
	return answer, nil
}

func pluginFor(request *benchmarkRequest) (*Plugin, error) {
	name := request.Node.Name
	weighed := []schedconfig.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}}
	least := &schedulingconfig.ScoringStrategy{Type: schedulingconfig.LeastAllocated, Resources: weighed}
	args := &schedulingconfig.NodeNUMAResourceArgs{
		DefaultCPUBindPolicy: schedulingconfig.CPUBindPolicyFullPCPUs,
		ScoringStrategy:      least,
		NUMAScoringStrategy:  least,
	}
	options := NewTopologyOptionsManager()
	topologyOptions := NewTopologyOptions(&request.Topology)
	options.UpdateTopologyOptions(name, func(known *TopologyOptions) { *known = topologyOptions })
	resources := &resourceManager{
		numaAllocateStrategy:   GetDefaultNUMAAllocateStrategy(args),
		topologyOptionsManager: options,
		nodeAllocations:        map[string]*NodeAllocation{},
	}
	for i, held := range request.Held {
		cpus, err := cpuset.Parse(held.CPUSet)
		if err != nil {
			return nil, err
		}
		allocation := &PodAllocation{UID: types.UID(fmt.Sprint("pod-", i)), CPUSet: cpus}
		for _, part := range held.NUMANodeResources {
			given := NUMANodeResource{Node: int(part.Node), Resources: part.Resources}
			allocation.NUMANodeResources = append(allocation.NUMANodeResources, given)
		}
		resources.Update(name, allocation)
	}
	plugin := &Plugin{
		pluginArgs:             args,
		scorer:                 resourceStrategyTypeMap[least.Type](args),
		numaScorer:             resourceStrategyTypeMap[least.Type](args),
		resourceManager:        resources,
		topologyOptionsManager: options,
	}
	plugin.handle = &extender{admission: topologymanager.New(providers{plugin})}
	return plugin, nil
}

type providers []topologymanager.NUMATopologyHintProvider

func (p providers) GetNUMATopologyHintProvider() []topologymanager.NUMATopologyHintProvider {
	return p
}

// An extender is all of the framework that the filter needs.
type extender struct {
	frameworkext.FrameworkExtender
	admission topologymanager.Interface
}

func (e *extender) RunNUMATopologyManagerAdmit(
	ctx context.Context,
	state fwktype.CycleState,
	pod *corev1.Pod,
	node *corev1.Node,
	nodes []int,
	policy extension.NUMATopologyPolicy,
	exclusive extension.NumaTopologyExclusive,
	statuses []extension.NumaNodeStatus,
) *fwktype.Status {
	return e.admission.Admit(ctx, state, pod, node, nodes, policy, exclusive, statuses)
}
