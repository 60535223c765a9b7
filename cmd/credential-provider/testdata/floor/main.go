// Command floor is what the plugin is measured against: the JSON of one request
// and one response, and nothing else.
package main

import (
	"encoding/json"
	"os"
)

type request struct {
	Image               string `json:"image"`
	ServiceAccountToken string `json:"serviceAccountToken"`
}

type response struct {
	APIVersion    string                       `json:"apiVersion"`
	Kind          string                       `json:"kind"`
	CacheKeyType  string                       `json:"cacheKeyType"`
	CacheDuration string                       `json:"cacheDuration"`
	Auth          map[string]map[string]string `json:"auth"`
}

func main() {
	var r request
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		os.Exit(1)
	}
	err := json.NewEncoder(os.Stdout).Encode(response{
		APIVersion:    "credentialprovider.kubelet.k8s.io/v1",
		Kind:          "CredentialProviderResponse",
		CacheKeyType:  "Registry",
		CacheDuration: "0s",
		Auth:          map[string]map[string]string{r.Image: {"username": "serviceaccount", "password": r.ServiceAccountToken}},
	})
	if err != nil {
		os.Exit(1)
	}
}
