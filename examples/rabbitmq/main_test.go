package main

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) {
	if os.Getenv("DRIP_EXAMPLE") != "" {
		main()
		return
	}
	os.Exit(servers.Main(m))
}

// The program handles all messages, postponed ones too, and ends by Ctrl-C.
func TestMainHandlesAll(t *testing.T) {
	url := servers.OwnRabbitMQ(t).URL()
	ch := servers.Channel(t, url)
	servers.Declare(t, ch, "quorum", "orders")
	const messages = 7
	servers.Publish(t, ch, "orders", slices.Repeat([]amqp.Publishing{{Body: []byte("shop-1")}}, messages)...)
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), "DRIP_EXAMPLE=1", "DRIP_RABBITMQ_URL="+url)
	out, err := program.StderrPipe()
	if err == nil {
		err = program.Start()
	}
	oktest.OK(t, err)
	defer program.Process.Kill() // if it does not end
	calls := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), " a call for shop-1") {
			if calls++; calls == messages {
				oktest.OK(t, program.Process.Signal(os.Interrupt))
			}
		}
	}
	oktest.OK(t, program.Wait())
	if calls != messages {
		t.Errorf("there were %d calls, want %d", calls, messages)
	}
}
