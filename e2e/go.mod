module github.com/pullpass/pullpass/e2e

go 1.26.0
