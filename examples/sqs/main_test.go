package main

import (
	"net/http/httptest"
	"testing"

	"github.com/drip-go/drip/internal/exampletest"
	"github.com/drip-go/drip/internal/sqsmodel"
)

// The program runs against any endpoint. Here it is a model of SQS.
func TestRun(t *testing.T) {
	server := httptest.NewServer(sqsmodel.New())
	defer server.Close()
	defer server.CloseClientConnections()
	for name, value := range map[string]string{"ENDPOINT_URL": server.URL, "REGION": "local", "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"} {
		t.Setenv("AWS_"+name, value)
	}
	exampletest.Runs(t, shops*perShop, run)
}
