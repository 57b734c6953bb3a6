// Answers questions with the choice of Koordinator's scheduler plugins and tells how long each took,
// so that a benchmark can ask in turns: a JSON object a line on standard input, one on standard
// output for each. A question with a topology is for the filter of NodeNUMAResource, any other one
// for the allocator of DeviceShare.
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
	var asked struct{ Topology json.RawMessage }
	if err := json.Unmarshal(line, &asked); err != nil {
		fail(err)
	}
	if asked.Topology != nil {
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
