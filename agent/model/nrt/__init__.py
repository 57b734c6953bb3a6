"""What a node reports: its NodeResourceTopology, and what Topolet adds to its Node.

`report` builds all of it from a moment's values. `resource_topology` is the object in both versions
of the API, `node_annotations` are Koordinator's annotations on it and on the Node, `node_status`
the labels and extended resources of the Node, `fingerprint` names the pods that were counted, and
`pod_holdings` what they hold by the kubelet's PodResources API."""
