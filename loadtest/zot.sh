#!/bin/sh
# zot's token endpoint, as a peer to compare with. zot is not built here: give one that has the endpoint in $ZOT.
#
#	ZOT=/usr/local/bin/zot make loadtest LOADTEST='-peer loadtest/zot.sh -peer-path /zot/auth/token compare'
set -eu
listen=$2 issuer=$4 ca=$6 # -listen … -issuer … -ca …
tls=
if [ $# -gt 6 ]; then
	tls="\"tls\": {\"cert\": \"$8\", \"key\": \"${10}\"},"
fi
dir=$(dirname "$ca")/zot
mkdir -p "$dir"
cat >"$dir/config.json" <<EOF
{
  "distSpecVersion": "1.1.1",
  "storage": {"rootDirectory": "$dir/storage"},
  "http": {
    "address": "${listen%:*}", "port": "${listen##*:}", $tls
    "auth": {"bearer": {
      "realm": "https://$listen/zot/auth/token", "service": "registry.example.com",
      "oidc": [{"issuer": "$issuer", "audiences": ["registry.example.com"], "certificateAuthorityFile": "$ca"}]
    }}
  },
  "log": {"level": "error"}
}
EOF
exec "${ZOT:-zot}" serve "$dir/config.json"
