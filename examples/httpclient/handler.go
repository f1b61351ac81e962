package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/provider"
)

// handler posts messages to the API, as Options.Handler of package consumer.
type handler struct {
	client *http.Client
	api    string
}

// newHandler returns a handler. Its client tells the bucket of refused calls at once, so that waiting messages of the same
// shop do not try.
func newHandler(bucket provider.Throttler, api string) handler {
	return handler{api: api, client: &http.Client{Timeout: 10 * time.Second, Transport: &provider.Transport{
		Bucket: bucket,
		Entity: func(r *http.Request) string { return consumer.OperationOf(r.Context()).Entity },
	}}}
}

// Handle implements consumer.Handler. A refused call is no failure: the message comes back after the time that the API asks
// for, and spends no retry.
func (h handler) Handle(ctx context.Context, d *amqp.Delivery) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.api, bytes.NewReader(d.Body))
	if err != nil {
		return err
	}
	request.Header.Set("X-Shop", consumer.OperationOf(ctx).Entity)
	response, err := h.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch status := provider.Read(response); {
	case status.Throttled:
		return consumer.Throttled(status.RetryAfter, nil)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("the API answers %s", response.Status)
	}
	return nil
}
