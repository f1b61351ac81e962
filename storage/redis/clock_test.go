package redis_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/redis"
)

// Set for a process of TestClocksOfProcesses: the address of the server, and how far its clock is ahead of other
// clocks.
const (
	clockServer = "DRIP_TEST_CLOCK_SERVER"
	clockAhead  = "DRIP_TEST_CLOCK_AHEAD"
)

// TestClocksOfProcesses has two processes share an entity whose clocks differ by a minute, and both by years from the
// server's. They are let through what one would be: what the server's clock has brought.
func TestClocksOfProcesses(t *testing.T) {
	if addr := os.Getenv(clockServer); addr != "" {
		askByAnotherClock(t, addr)
		return
	}
	mini := miniredis.RunT(t)
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(clock)
	a, b := startClockProcess(t, mini.Addr(), 0), startClockProcess(t, mini.Addr(), time.Minute)
	if apart := b.clock - a.clock; apart != 60 || time.Unix(a.clock, 0).After(clock) {
		t.Fatalf("the clocks of the processes are at %d and %d", a.clock, b.clock)
	}
	for i, want := range []int{10, 0, 5, 10, 10} {
		delayed, admitted := a.ask(t)
		moreDelayed, moreAdmitted := b.ask(t)
		if delayed += moreDelayed; delayed != want {
			t.Errorf("step %d: GetDelay let %d run, want %d", i, delayed, want)
		}
		if admitted += moreAdmitted; admitted != want {
			t.Errorf("step %d: Admit let %d run, want %d", i, admitted, want)
		}
		clock = clock.Add(time.Duration(i) * time.Second) // steps of 0, 1, 2 … seconds
		mini.SetTime(clock)
	}
}

// clockProcess is a process that asks when told to.
type clockProcess struct {
	clock int64
	in    io.WriteCloser
	out   *bufio.Reader
}

func startClockProcess(t *testing.T, addr string, ahead time.Duration) *clockProcess {
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), clockServer+"="+addr, clockAhead+"="+ahead.String())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ok(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		rest, _ := io.ReadAll(stdout)
		if err := cmd.Wait(); err != nil {
			t.Errorf("a process: %v\n%s", err, rest)
		}
	})
	p := &clockProcess{in: in, out: bufio.NewReader(stdout)}
	if _, err := fmt.Fscanln(p.out, &p.clock); err != nil {
		t.Fatal(err)
	}
	return p
}

// ask returns how many GetDelay and Admit let through.
func (p *clockProcess) ask(t *testing.T) (delayed, admitted int) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(p.out, &delayed, &admitted); err != nil {
		t.Fatal(err)
	}
	return delayed, admitted
}

// askByAnotherClock is the program of one of the processes. The time in a bubble of synctest begins with the year 2000.
func askByAnotherClock(t *testing.T, addr string) {
	ahead, err := time.ParseDuration(os.Getenv(clockAhead))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(ahead)
		client := goredis.NewClient(&goredis.Options{Addr: addr})
		defer client.Close()
		bucket := buckettest.New(t, drip.Options{
			Size: 10, RefreshRate: 5, Storage: newStorageWith(t, client, redis.Options{}),
		})
		fmt.Println(time.Now().Unix())
		for told := bufio.NewScanner(os.Stdin); told.Scan(); {
			delayed, admitted := 0, 0
			for range 11 {
				delay, err := bucket.GetDelay(t.Context(), "shop")
				if err == nil && delay == 0 {
					delayed++
					err = bucket.ReturnToken(t.Context(), "shop")
				}
				if err != nil {
					t.Fatal(err)
				}
				a, err := bucket.Admit(t.Context(), "job", drip.Request{})
				if err == nil && a.Delay == 0 {
					admitted++
					err = bucket.Settle(t.Context(), "job", a.Lease, 1)
				} else if err == nil {
					err = bucket.Cancel(t.Context(), "job", a)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			fmt.Println(delayed, admitted)
		}
	})
}
