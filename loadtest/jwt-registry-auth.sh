#!/bin/sh
# The token server of jwt-registry-auth, as a peer to compare with. It is not built here: give its program (cmd/token-server)
# in $JWT_REGISTRY_AUTH.
#
#	ZOT=/usr/local/bin/zot JWT_REGISTRY_AUTH=/usr/local/bin/token-server make loadtest LOADTEST=peers
#
# With a discovery URL it would fetch the issuer's keys for each request, so it is given the key itself. What it demands of
# tokens, and grants, is what the policy of the load test says; without the conditions it would take any audience and grant all.
# It speaks no TLS.
set -eu
listen=$2 issuer=$4 dir=$(dirname "$6") # -listen … -issuer … -ca …
cat >"$dir/jwt-registry-auth.yaml" <<EOF
server: {listenAddress: "$listen", tokenPath: /auth/token}
token: {issuer: pullpass.example.com, certificate: $dir/tls.crt, key: $dir/tls.key, duration: 5m}
providers:
- name: serviceaccount
  staticKeys:
  - key: |
$(sed 's/^/      /' "$dir/issuer.pem")
  authn:
    condition: claims["iss"] == "$issuer" && service in claims["aud"]
  authz:
    condition: scope["action"] == "pull" && scope["name"].startsWith(claims["kubernetes.io"]["namespace"] + "/")
EOF
exec "${JWT_REGISTRY_AUTH:-token-server}" --config-file "$dir/jwt-registry-auth.yaml"
