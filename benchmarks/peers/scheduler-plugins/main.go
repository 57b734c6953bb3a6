// Decides requests with the filter of kube-scheduler's plugin NodeResourceTopologyMatch and reports
// the time of each call. A request is a line of JSON on standard input, its answer a line of JSON on
// standard output.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"topolet.example/benchmarks/peers/scheduler-plugins/noderesourcetopology"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		answer, err := noderesourcetopology.Decide(lines.Bytes())
		if err != nil {
			answer.Error = err.Error()
		}
		if err := answers.Encode(answer); err != nil {
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
