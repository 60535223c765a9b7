#!/bin/sh
# Installs the Debian packages that the end-to-end tests run. Only those that are missing; needs root for that.
# The tests run the programs themselves, on ports of their own: no service of these packages has to run.
set -eu

missing=
for package in etcd-server skopeo podman docker-registry containerd runc containernetworking-plugins iproute2 redis-server openssl curl docker.io haproxy busybox-static; do
	dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
if [ -z "$missing" ]; then
	exit 0
fi

echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086 # a list of package names
apt-get install -q -y --no-install-recommends $missing
