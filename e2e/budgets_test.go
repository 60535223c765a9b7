package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullpass/pullpass/e2e/cluster"
	"github.com/pullpass/pullpass/e2e/pullpass"
	"github.com/pullpass/pullpass/e2e/testenv"
)

const (
	// crowdRequests and crowdAccounts are what one namespace has, as large as the API server takes it: kept whole, more than
	// memoryForCrowd. More would take etcd minutes.
	crowdRequests = 1000
	crowdAccounts = 400
	crowd         = "objects-crowd"

	containerLimit  = 256 << 20       // of the chart
	goMemoryLimit   = "241591910"     // nine tenths of it
	memoryForCrowd  = 120 << 20       // what the most memory may grow by, with the garbage that the lists leave
	budgetLimit     = 5 * time.Minute // statuses are written some at a time, oldest first
	creatorsOfCrowd = 16
)

// largestRequest is a RepositoryAccess as large as its schema allows.
func largestRequest(i int) cluster.Object {
	accounts, repositories := []string{puller}, []string{fmt.Sprintf("%s/own-%d", crowd, i)}
	for k := range 63 {
		accounts = append(accounts, fmt.Sprintf("%03d-%s", k, strings.Repeat("a", 249)))
	}
	for k := range 127 {
		name := fmt.Sprintf("%s/%03d/", crowd, k)
		repositories = append(repositories, name+strings.Repeat("a", 255-len(name)))
	}
	return repositoryAccess(fmt.Sprintf("ra-%05d", i), func(spec cluster.Object) {
		spec["serviceAccounts"], spec["repositories"] = accounts, repositories
	})
}

// fill creates objects, several at a time.
func (s *site) fill(t *testing.T, collection string, n int, object func(i int) cluster.Object) {
	t.Helper()
	next := make(chan int)
	var creators sync.WaitGroup
	for range creatorsOfCrowd {
		creators.Go(func() {
			for i := range next {
				if _, err := s.Try(t.Context(), http.MethodPost, collection, object(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	creators.Wait()
}

// TestBudgets has a namespace with more and larger objects than there is memory for: Pullpass stays ready, decides for others as
// before, and says of the namespace's own that they count for nothing.
func TestBudgets(t *testing.T) {
	const quiet = "objects-quiet"
	s := startSite(t, cluster.Options{})
	s.withObjects(t)
	s.apply(t, statusRights)
	s.workload(t, quiet)
	s.workload(t, crowd)
	config := s.config(func(c *pullpass.Cluster) {
		c.Kubernetes.Objects = &pullpass.Objects{Policies: true, Requests: true, Within: []string{"objects-*/**"}, Status: true}
	})
	config.Policy = ceilings + "- {name: asked-for, subjects: [{namespaces: [\"*\"]}], annotation: pullpass.dev/repositories, allow: [{repositories: [\"shared/**\"], actions: [pull]}]}\n"
	config.Environment = []string{"GOMEMLIMIT=" + goMemoryLimit}
	s.Create(t, requestsPath(quiet), repositoryAccess("web", func(spec cluster.Object) { spec["repositories"] = []string{quiet + "/web"} }))
	quietToken := s.podToken(t, s.CreatePod(t, quiet, "web", puller, "node1"))
	crowdToken := s.podToken(t, s.CreatePod(t, crowd, "web", puller, "node1"))
	first := s.pullpass(t, config)
	host := first.Host(t, pullpass.From{})
	turns(t, host, quietToken, own(quiet), "", own(quiet))
	before := first.MostMemory(t)

	// The API server has the time of creation in seconds, and the objects of one second have no order that a test could know.
	earliest := s.Create(t, requestsPath(crowd), largestRequest(0))
	created := testenv.Value(time.Parse(time.RFC3339, earliest.Text("metadata", "creationTimestamp")))(t)
	within(t, budgetLimit, "the second of the oldest object ends", func() bool { return time.Since(created) > time.Second })
	s.fill(t, requestsPath(crowd), crowdRequests-1, func(i int) cluster.Object { return largestRequest(i + 1) })
	s.fill(t, "/api/v1/namespaces/"+crowd+"/serviceaccounts", crowdAccounts, func(i int) cluster.Object {
		return cluster.Object{"metadata": cluster.Object{"name": fmt.Sprintf("sa-%05d", i), "annotations": cluster.Object{"pullpass.dev/repositories": strings.Repeat("a ", 127<<10)}}}
	})
	judge := func(who string, p *pullpass.Proxy) {
		t.Helper()
		host := p.Host(t, pullpass.From{})
		expect(t, who+": another namespace", host.Ask(t, service, quietToken, own(quiet)), own(quiet))
		oldest, newest := fmt.Sprintf("repository:%s/own-0:pull", crowd), fmt.Sprintf("repository:%s/own-%d:pull", crowd, crowdRequests-1)
		expect(t, who+": the oldest object", host.Ask(t, service, crowdToken, oldest), oldest)
		answer := host.Ask(t, service, crowdToken, newest)
		expect(t, who+": the newest object", answer, "")
		if n := len(answer.Audit.Scopes); n != 1 || !strings.Contains(answer.Audit.Scopes[0].Reason, "RepositoryAccess objects of the namespace count for nothing") {
			t.Errorf("%s: the audit line says %+v", who, answer.Audit.Scopes)
		}
		if ready, report := p.Ready(t); !ready {
			t.Errorf("%s is not ready: %s", who, report)
		}
		most := p.MostMemory(t)
		t.Logf("%s: at most %d MiB resident, %d MiB before", who, most>>20, before>>20)
		if most > min(containerLimit, before+memoryForCrowd) {
			t.Errorf("%s: %d MiB were resident, before there was a crowd %d MiB", who, most>>20, before>>20)
		}
	}
	judge("by watches", first)
	judge("by lists", s.pullpass(t, config))
	// Its status says so, and that of another namespace does not wait for it.
	s.Patch(t, requestsPath(quiet)+"/web", cluster.Object{"spec": cluster.Object{"repositories": []string{quiet + "/other"}}})
	within(t, budgetLimit, "the status of another namespace follows", func() bool {
		return s.objectStatus(t, requestsPath(quiet)+"/web").Status.ObservedGeneration == 2
	})
	within(t, budgetLimit, "a status of the crowd says that it has no room", func() bool {
		conditions := s.objectStatus(t, requestsPath(crowd)+"/ra-00300").Status.Conditions // seconds younger than those with room
		return len(conditions) == 2 && conditions[0].Reason == "TooMany"
	})
}
