#!/bin/sh
# Runs the nodes of the tests for a person: hold.sh up, hold.sh shell, hold.sh down.
set -eu
cd "$(dirname "$0")/../.."
held=$PWD/bin/node
pid=$(cat "$held/pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null || pid=

case "$1" in
up)
	if [ -n "$pid" ]; then
		echo "the nodes run already: make node-shell, or make node-down" >&2
		exit 1
	fi
	./.ci/install e2e
	mkdir -p "$held"
	(cd e2e && go test -c -tags=hold -o "$held/hold.test" ./nodetest)
	cd e2e/nodetest # where "go test" runs it
	setsid "$held/hold.test" -test.run='^TestHold$' -test.timeout=0 >"$held/log" 2>&1 </dev/null &
	pid=$!
	echo "$pid" >"$held/pid"
	echo "starting, which takes minutes the first time: $held/log"
	until grep -q '^ready' "$held/log"; do
		if ! kill -0 "$pid" 2>/dev/null; then
			tail -n 30 "$held/log" >&2
			exit 1
		fi
		sleep 0.2
	done
	cat "$held/log"
	;;
shell)
	if [ -z "$pid" ]; then
		echo "no nodes run: make node-up" >&2
		exit 1
	fi
	inside=$(cat "/proc/$pid/task/"*/children)
	# shellcheck disable=SC2086 # a process id and a space
	exec nsenter --target $inside --mount --net --pid env KUBECONFIG=/run/kubeconfig "${SHELL:-/bin/sh}"
	;;
down)
	if [ -z "$pid" ]; then
		echo "no nodes run" >&2
		exit 0
	fi
	kill "$pid"
	while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
	rm -f "$held/pid"
	;;
esac
