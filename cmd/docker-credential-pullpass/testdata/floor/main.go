// Command floor is what the helper is measured against: the JSON of one answer,
// with the content of standard input and of the file, and nothing else.
package main

import (
	"encoding/json"
	"io"
	"os"
)

func main() {
	server, err := io.ReadAll(os.Stdin)
	if err != nil {
		os.Exit(1)
	}
	token, err := os.ReadFile(os.Getenv("PULLPASS_TOKEN_FILE"))
	if err != nil {
		os.Exit(1)
	}
	answer := map[string]string{"ServerURL": string(server), "Username": "serviceaccount", "Secret": string(token)}
	if json.NewEncoder(os.Stdout).Encode(answer) != nil {
		os.Exit(1)
	}
}
