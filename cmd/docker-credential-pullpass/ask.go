package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// tries of one question. GitHub's own toolkit tries eleven times.
	tries = 3

	// maxAnswerSize bounds the answer of a server or program, in bytes: a token of
	// 16 KiB and some JSON.
	maxAnswerSize = 32 << 10
)

var errAnswerSize = fmt.Errorf("answered more than %d KiB", maxAnswerSize>>10)

// asker sends requests. It follows no redirect: a token must reach no other server.
type asker struct {
	client *http.Client
	pause  time.Duration // before the second try; twice that before the third
}

func newAsker() asker {
	return asker{&http.Client{
		Timeout: 8 * time.Second,
		// Runners that are one's own may have a proxy in their environment.
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, MaxResponseHeaderBytes: maxAnswerSize},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, time.Second}
}

// reply is a response of any status.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a request, and repeats it after an error that a restarted or overloaded
// server gives.
func (a asker) ask(ctx context.Context, method, address string, header map[string]string, body string) (reply, error) {
	for try := 1; ; try++ {
		r, again, err := a.try(ctx, method, address, header, body)
		if !again || try == tries {
			return r, err
		}
		select {
		case <-time.After(time.Duration(try) * a.pause):
		case <-ctx.Done():
			return r, err
		}
	}
}

// try says whether to ask again.
func (a asker) try(ctx context.Context, method, address string, header map[string]string, body string) (r reply, again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return reply{}, false, errors.New("not an address")
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := a.client.Do(request)
	if err != nil {
		if asked := (*url.Error)(nil); errors.As(err, &asked) {
			err = asked.Err // the address is long, and known
		}
		return reply{}, true, err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerSize+1))
	if err != nil {
		return reply{}, true, err
	}
	if len(content) > maxAnswerSize {
		return reply{}, false, errAnswerSize
	}
	again = response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests
	return reply{response.StatusCode, response.Header, content}, again, nil
}
