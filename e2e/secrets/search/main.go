// Command search looks for the credentials of a captured run in all that programs wrote. It prints the places, never a credential.
package main

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/pullpass/pullpass/e2e/secrets"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: search DIRECTORY")
	}
	begin := time.Now()
	index, err := secrets.ReadIndex(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	findings, files, size, err := index.SearchRun(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for _, finding := range findings {
		fmt.Println(finding)
	}
	fmt.Printf("%d findings in %d files of %d MiB, in %v; credentials: %v\n", len(findings), files, size>>20, time.Since(begin).Round(time.Second), index.Credentials())
	if len(findings) > 0 {
		os.Exit(1)
	}
}
