// Command pause waits for SIGTERM. It is all that is in the images of the tests: a pod's sandbox needs no more, and neither
// does a container of which it matters only that it runs.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	fmt.Println("running")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
