// Package critest keeps what the suite's test program imports in go.mod: the program itself is
// nothing but a test file, which no other package's import reaches.
package critest

import (
	_ "github.com/onsi/ginkgo/v2"
	_ "github.com/onsi/gomega"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
