"""What a node reports: its NodeResourceTopology, and the fields that Topolet adds to the Node.

`report` builds all of it from the values of one pass. `resource_topology` is the object in both
versions of the API. `node_annotations` has Koordinator's annotations on it and on the Node,
`node_status` the labels and extended resources of the Node. `fingerprint` identifies the pods that
were counted, and `pod_holdings` has the resources that they hold by the kubelet's PodResources
API."""
