package redis

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// moving is a Cluster with one master, which moves.
type moving struct{ master *goredis.Client }

func (c *moving) MasterForKey(context.Context, string) (*goredis.Client, error) { return c.master, nil }
func (c *moving) ReloadState(context.Context)                                   {}

// In a Cluster whose nodes come and go nothing is left of those that are gone.
func TestLanesOfNodesThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(goredis.NewClient(&goredis.Options{Addr: "10.0.0.100:6379"}), Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := &moving{}
		s.cluster = c
		s.reached.Store(true)
		for i := range 10 {
			before := c.master
			c.master = goredis.NewClient(&goredis.Options{Addr: fmt.Sprintf("10.0.0.%d:6379", i)})
			first := s.lane(t.Context(), "shop")
			time.Sleep(laneTime)
			if s.lane(t.Context(), "shop") != first {
				t.Error("the lane of a node that is there was removed")
			}
			if before != nil {
				before.Close()
			}
		}
		if n := len(s.lanes); n > 2 {
			t.Errorf("%d nodes have a lane, one is there", n)
		}
		c.master.Close()
		s.client.Close()
	})
}
