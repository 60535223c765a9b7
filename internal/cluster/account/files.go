package account

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
)

// The names of an account's files, in a directory or a Secret.
const (
	KubeconfigFile = "kubeconfig"
	CAFile         = "ca.crt"
	TokenFile      = "token"
)

// kubeconfig returns the kubeconfig of the account, with paths relative to it.
func kubeconfig(name string, connection *rest.Config, tokenFile string) ([]byte, error) {
	const user = "pullpass"
	cluster := &api.Cluster{Server: connection.Host, TLSServerName: connection.ServerName}
	if len(connection.CAData) > 0 {
		cluster.CertificateAuthority = CAFile
	}
	return clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{name: cluster},
		AuthInfos:      map[string]*api.AuthInfo{user: {TokenFile: cmp.Or(tokenFile, TokenFile)}},
		Contexts:       map[string]*api.Context{name: {Cluster: name, AuthInfo: user, Namespace: Namespace}},
		CurrentContext: name,
	})
}

// Write writes the kubeconfig of the account in the cluster called name to a directory, and the
// API server's CA, if it is not one of the system. tokenFile is the file of a token that someone
// else renews; if it is empty, token is written, too.
func (c *Cluster) Write(dir, name, tokenFile string, token Token) (hasCA bool, err error) {
	connection := rest.CopyConfig(c.connection)
	if err := rest.LoadTLSFiles(connection); err != nil {
		return false, err
	}
	text, err := kubeconfig(name, connection, tokenFile)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	files := map[string][]byte{KubeconfigFile: text, CAFile: connection.CAData, TokenFile: []byte(token.Reveal())}
	for file, data := range files {
		if err := replaceOrRemove(filepath.Join(dir, file), data); err != nil {
			return false, err
		}
	}
	return len(connection.CAData) > 0, nil
}

// replaceOrRemove leaves no file of an earlier account that this one does not have.
func replaceOrRemove(name string, data []byte) error {
	if len(data) > 0 {
		return replace(name, data)
	}
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// WriteToken replaces the token in a directory of Write.
func WriteToken(dir string, token Token) error {
	return replace(filepath.Join(dir, TokenFile), []byte(token.Reveal()))
}

// replace leaves no part of a file: Pullpass reads it at any moment.
func replace(name string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Renew replaces the token in a Secret that has the files of Write. home is the connection to the
// cluster of the Secret. A conflict with another writer is an error.
func Renew(ctx context.Context, home *rest.Config, namespace, name string) (Token, error) {
	c, err := New(home)
	if err != nil {
		return Token{}, err
	}
	core, err := c.clients.Typed(corev1.SchemeGroupVersion, runtime.ContentTypeJSON, &corev1.Secret{})
	if err != nil {
		return Token{}, err
	}
	secret := &corev1.Secret{}
	if err := core.Get().Namespace(namespace).Resource("secrets").Name(name).Do(ctx).Into(secret); err != nil {
		return Token{}, err
	}
	account, err := ofSecret(secret.Data)
	if err != nil {
		return Token{}, fmt.Errorf("secret %s: %w", name, err)
	}
	token, err := account.Token(ctx)
	if err != nil {
		return Token{}, fmt.Errorf("secret %s: %w", name, err)
	}
	secret.Data[TokenFile] = []byte(token.Reveal())
	return token, core.Put().Namespace(namespace).Resource("secrets").Name(name).Body(secret).Do(ctx).Error()
}

var errNotOurs = errors.New("has not the files of pullpass cluster add: kubeconfig, token and ca.crt")

// ofSecret returns the connection that the files in a Secret describe. It opens no file: a writer of
// the Secret could name any.
func ofSecret(files map[string][]byte) (*Cluster, error) {
	if _, err := strictyaml.ParseAll(files[KubeconfigFile], maxDocument); err != nil { // clientcmd expands aliases
		return nil, fmt.Errorf("%w: %w", errNotOurs, err)
	}
	config, err := clientcmd.Load(files[KubeconfigFile])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotOurs, err)
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil || config.Clusters[context.Cluster] == nil || len(files[TokenFile]) == 0 {
		return nil, errNotOurs
	}
	cluster := config.Clusters[context.Cluster]
	connection := &rest.Config{
		Host:            cluster.Server,
		BearerToken:     string(files[TokenFile]),
		TLSClientConfig: rest.TLSClientConfig{ServerName: cluster.TLSServerName},
	}
	if cluster.CertificateAuthority != "" { // a Secret can have another's
		connection.CAData = files[CAFile]
	}
	if !rest.IsConfigTransportTLS(*connection) {
		return nil, fmt.Errorf("%w: the server has no https URL", errNotOurs)
	}
	return New(connection)
}
