// Built together with a copy of the plugin's package of this name, which can't be made without a
// scheduler around it otherwise.

package noderesourcetopology

import (
	"context"
	"encoding/json"
	"time"

	topologyv1alpha2 "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	nrtcache "sigs.k8s.io/scheduler-plugins/pkg/noderesourcetopology/cache"
)

// A benchmarkRequest is a node and a pod; Calls is how often to decide it.
type benchmarkRequest struct {
	Calls    int
	Topology topologyv1alpha2.NodeResourceTopology
	Node     corev1.Node
	Pod      corev1.Pod
}

// An Answer has the nanoseconds of each call, and why the last one refused the pod.
type Answer struct {
	Nanoseconds []int64 `json:"ns"`
	Reason      string  `json:"reason"`
	Error       string  `json:"error,omitempty"`
}

// A fixedCache returns copies of one object, as the caches of the plugin do.
type fixedCache struct {
	nrtcache.Interface
	object *topologyv1alpha2.NodeResourceTopology
}

func (cache fixedCache) GetCachedNRTCopy(context.Context, string, *corev1.Pod) (*topologyv1alpha2.NodeResourceTopology, nrtcache.CachedNRTInfo) {
	return cache.object.DeepCopy(), nrtcache.CachedNRTInfo{Fresh: true}
}

func (fixedCache) NodeMaybeOverReserved(string, *corev1.Pod) {}

// Decide answers one request as JSON.
func Decide(line []byte) (Answer, error) {
	var request benchmarkRequest
	if err := json.Unmarshal(line, &request); err != nil {
		return Answer{}, err
	}
	plugin := &TopologyMatch{logger: klog.Background(), nrtCache: fixedCache{object: &request.Topology}}
	node := framework.NewNodeInfo()
	node.SetNode(&request.Node)
	var answer Answer
	for i := 0; i < request.Calls; i++ {
		start := time.Now()
		status := plugin.Filter(context.Background(), nil, &request.Pod, node)
		answer.Nanoseconds = append(answer.Nanoseconds, time.Since(start).Nanoseconds())
		answer.Reason = status.Message()
	}
	return answer, nil
}
