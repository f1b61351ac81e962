package main

import (
	"os"
	"testing"

	"github.com/drip-go/drip/internal/exampletest"
	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

func TestRun(t *testing.T) {
	url := servers.UseSQS(t).URL()
	for name, value := range map[string]string{"ENDPOINT_URL": url, "REGION": "local", "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"} {
		t.Setenv("AWS_"+name, value)
	}
	exampletest.Runs(t, shops*perShop, run)
}
