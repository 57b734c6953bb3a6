// Command descriptor writes the whole CRI, as protobuf describes a file to itself, to the path that
// is its argument.
package main

import (
	"log"
	"os"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	file := (&cri.VersionRequest{}).ProtoReflect().Descriptor().ParentFile()
	text, err := proto.Marshal(protodesc.ToFileDescriptorProto(file))
	if err == nil {
		err = os.WriteFile(os.Args[1], text, 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}
