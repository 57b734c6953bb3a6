// Answers questions with the filter of kube-scheduler's plugin NodeResourceTopologyMatch and tells
// how long each took, so that a benchmark can ask in turns: a JSON object a line on standard input,
// one on standard output for each.
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
