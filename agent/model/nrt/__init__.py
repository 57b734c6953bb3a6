"""What a node reports: its NodeResourceTopology, and the fields that Topolet adds to the Node.

`resource_topology` is the object in both versions of the API, with the fingerprint of the pods that
were counted. `node_annotations` has Koordinator's annotations on it and on the Node, `node_status`
the labels and extended resources of the Node."""
