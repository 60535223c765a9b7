package kubetest

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// review answers a TokenReview as API servers do whose authenticator knows of
// audiences: the objects that the token names must be there. Signatures it believes.
func (s *Server) review(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Spec struct {
			Token     string   `json:"token"`
			Audiences []string `json:"audiences"`
		} `json:"spec"`
	}
	_ = json.NewDecoder(r.Body).Decode(&review)
	status := Object{"error": "[invalid bearer token, service account token has been invalidated]"}
	if username, uid, audiences := s.authenticate(review.Spec.Token); username != "" {
		audiences = slices.DeleteFunc(audiences, func(a string) bool { return !slices.Contains(review.Spec.Audiences, a) })
		if len(audiences) > 0 {
			status = Object{"authenticated": true, "audiences": audiences, "user": Object{"username": username, "uid": uid}}
		}
	}
	answerJSON(w, http.StatusCreated, Object{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": Object{}, "spec": Object{}, "status": status})
}

func (s *Server) authenticate(token string) (username, uid string, audiences []string) {
	var claims struct {
		Audiences  []string `json:"aud"`
		Subject    string   `json:"sub"`
		Kubernetes struct {
			Namespace                   string
			ServiceAccount, Secret, Pod struct{ Name, UID string }
		} `json:"kubernetes.io"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", "", nil
	}
	payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
	if json.Unmarshal(payload, &claims) != nil {
		return "", "", nil
	}
	k := &claims.Kubernetes
	s.mu.Lock()
	defer s.mu.Unlock()
	for resource, named := range map[string]struct{ Name, UID string }{"serviceaccounts": k.ServiceAccount, "secrets": k.Secret, "pods": k.Pod} {
		if named.Name == "" {
			continue
		}
		o, ok := s.objects[resource][k.Namespace+"/"+named.Name]
		if !ok || metadata(o)["uid"] != named.UID {
			return "", "", nil
		}
	}
	return claims.Subject, k.ServiceAccount.UID, claims.Audiences
}
