// Package e2e tests Pullpass with the real other side: programs and libraries that it meets in production, each as its own
// process on loopback. "make e2e" runs it.
//
//	TestAPIServerTokens       every kind of token that a kube-apiserver issues, in every mode
//	TestAPIServerDiscovery    the API server's keys, over its TLS, with and without anonymous access
//	TestAPIServerKeyRotation  the API server changes its signing key
//	TestSigningKeyRotation    Pullpass changes keys, algorithms, CAs and the way of trust a hundred times, and no pull fails
//	TestKubernetes            the live connection, with the rights of deploy/kubernetes/rbac.yaml: what is checked, who the caller
//	                          is, outages, two clusters, events on pods, and what is lost without each right
//	TestRegistriesVerify      tokens of Pullpass, and variants that differ in one point, at each registry
//	TestClients               clients × registries: login, push, pull, mount, catalog, delete, and refusals
//	TestGatewayClients        the gateway before registries that know nothing of Pullpass, and clients × upstreams: their requests, the
//	                          refusals, and that no client sees another's credential
//	TestGatewayPushCredential a CI job pushes through the gateway with the output of its credential helper
//	TestMirror                regclient, which asks for all that it has used before, with 500 repositories
//
// Package nodetest has namespaces of its own:
//
//	TestNode                  pods on kubelets, with containerd 2 and 1: granted, refused, robbed, pulling by a pull secret, and pulling
//	                          through restarts and new keys
//	TestGatewayNodes          pods whose images keep their names, while the gateway stands in for the registries: granted, refused,
//	                          revoked, registries that are down, and that no token leaves for a registry or the names of images
//
// Package podtest has, too:
//
//	TestPods                  registry clients in pods, and CSI drivers: as docs/how-to/in-pod.md and docs/how-to/csi.md show, with tokens that
//	                          the kubelet renews
//	TestReaders               programs that read images in pods, as docs/how-to/readers.md shows, with no pull secret in the cluster; "make
//	                          readers" has those that take minutes to build as well
//
// Package pullsecretstest has, too:
//
//	TestPolicies, TestScale, TestRotation  the controller of pull secrets with a real API server: refusals by its policies, 5,000 ServiceAccounts,
//	                          other keys, other leaders, and controllers that undo its work
//
// Package charttest, in the same way, tests the Helm chart, with many sets of values:
//
//	TestGolden, TestNotes     what Helm makes of them, and what it says
//	TestMistakes, TestRights  values that are refused; the rights of deploy/kubernetes/rbac.yaml and no others
//	TestCheck                 "pullpass check" with the files of the pod
//	TestCluster               a real API server accepts all of it; docs/start/install.md, step by step; upgrades, a drain and a rollback
//	                          while pods pull; what is left after an uninstall
//
// Package rollouttest has, too, the chart's installer on simulated nodes of a real API server, with the real DaemonSet controller and
// scheduler:
//
//	TestOneAtATime            20 nodes are installed and changed one after the other; a failure on the first stops the others
//	TestNewNodes              50 nodes that come with the taint, and no pod whose first pull fails
//	TestRights                what a pod of the installer can do to its own Node, and to nothing else
//	TestTurnsOfOthers         the Lease of another node can be neither taken nor ended, whatever is written into it
//
// Package privilegetest has, too:
//
//	TestPrivileges            what an attacker can do as each ServiceAccount of the chart and of deploy/kubernetes, compared with a list
//
// Package replicatest has, too:
//
//	TestFaults                three replicas under load, while Redis and replicas fail in every way: the effects on requests, and
//	                          how long answers take before, meanwhile and after
//
// Package upgradetest has, too, the release before, which it makes from the history:
//
//	TestUpgrade               replicas of both releases, one replaced after the other and back, while clients pull: no pull fails, and each uses the
//	                          credentials, revocations and keys of the other
//	TestChart                 the values of before, for the chart of this release: it changes no field that cannot change, and pods last
//	TestNodes                 one release installs on a node, and the other takes over what it left, and takes it away
//
// Package kubectltest has, too:
//
//	TestWhy                   kubectl pullpass, as a developer who may read pods, events and RepositoryAccess objects of one namespace
//
// Package chaostest has, too:
//
//	TestChaos                 three replicas under load, and faults that a seed chooses, alone and together: an oracle judges every answer
//
// Package composetest has, too, and an engine of its own:
//
//	TestDocker                docs/start/docker.md, step by step: docker-compose.yaml, and the image, which is the same however it is built
//	TestGatewayDocker         docker and BuildKit push and pull through the gateway
//	TestBuildsPush            CI jobs push as docs/how-to/ci.md shows, with builds that last longer than their tokens; other jobs do not
//
// Package tracetest has, too:
//
//	TestTraceFromContainerd   a pull is one trace, from containerd to Pullpass, and no piece of a credential is sent to the collector
//
// Package machinetest has, too:
//
//	TestPlatforms             "pullpass node-install" on machines with the file layout of each platform: from the bare node to the bare node, kubelets
//	                          that do not come back, losses of power, and files that the platform writes anew
//
// Package troubletest has, too, and an engine of its own:
//
//	TestPage                  each symptom of docs/how-to/troubleshooting.md, and the texts of clients
//
// Package airgaptest has, too:
//
//	TestNoCallsHome           Pullpass in a network without a route: a push and a pull, and each address that it tries to reach
//
// Package releasetest needs no namespaces:
//
//	TestRelease               "make release": the same bytes from two directories; pushed to a registry, and verified and installed from there as
//	                          docs/start/release.md shows
//
// The packages below it run the parts:
//
//	testenv    errors, waits and files of every test
//	programs   finds Debian's programs, builds the others and keeps them in a cache
//	process    starts, watches and stops a program
//	certs      keys and certificates
//	cluster    etcd, kube-apiserver, controllers, scheduler; TokenRequest, rights, and ways to fail
//	issuer     a cluster's issuer without the cluster, and GitHub's for CI jobs
//	registry   a distribution registry
//	upstream   a distribution registry for the gateway, with users or with a token endpoint of its own
//	pullpass   "pullpass serve", its answers and its audit lines
//	node       containerd and the kubelet
//	machine    systemd as process 1, with a root directory of its own
//	isolate    namespaces in which the tests of a package run, and a network that can be partitioned
//	relay      a network that fails, is slow, or keeps what two programs say to each other, and a load balancer
//	collector  an OpenTelemetry collector, which keeps all that it receives
//	secrets    looks for pieces of credentials in what programs wrote or sent
//	redis      one server, Sentinels or a Cluster, and redis-cli
//
// The directories kubernetes, oldkubelet, containerd, compose, buildkit, etcd, helm, clients and distribution are modules of their own that only say which version to
// build, so that neither the product nor these tests depend on them. So are csidriver, the driver of podtest, and crds, which names
// whose definitions of custom resources charttest uses.
//
// Nothing here is skipped: a part that is missing fails the test and says how to get it. The first run builds Kubernetes and
// containerd, which takes minutes; later runs take it from the cache. "go test -v" shows the tables of clients and operations, of pods, and of faults.
package e2e
