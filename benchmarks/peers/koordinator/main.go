// Decides requests with Koordinator's scheduler plugins and reports the time of each call. A request
// is a line of JSON on standard input, its answer a line of JSON on standard output. Requests with a
// topology are for the filter of NodeNUMAResource, the others for the allocator of DeviceShare.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"topolet.example/benchmarks/peers/koordinator/deviceshare"
	"topolet.example/benchmarks/peers/koordinator/nodenumaresource"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		if err := answers.Encode(decide(lines.Bytes())); err != nil {
			fail(err)
		}
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func decide(line []byte) any {
	var req struct{ Topology json.RawMessage }
	if err := json.Unmarshal(line, &req); err != nil {
		fail(err)
	}
	if req.Topology != nil {
		answer, err := nodenumaresource.Decide(line)
		if err != nil {
			answer.Error = err.Error()
		}
		return answer
	}
	answer, err := deviceshare.Decide(line)
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
