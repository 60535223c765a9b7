// Command roots prints the CA certificates that are in the container image:
// Mozilla's, as the Go project publishes them. go.sum fixes them, so that an
// image does not depend on the machine that it is built on.
package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	if err := write(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "roots:", err)
		os.Exit(1)
	}
}

// write leaves out a root that Mozilla trusts only under a condition (today:
// for certificates issued before some day), because PEM cannot say so.
func write(w io.Writer) error {
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return err
		}
	}
	return nil
}
