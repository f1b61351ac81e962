package rabbitmq

import (
	"testing"
	"time"
)

// The messages of a delay queue leave it when its next slot begins, or as much earlier as a Consumer holds them.
func TestDelaysExpire(t *testing.T) {
	now := time.Now()
	for _, d := range delayQueuesOf("orders") {
		all := d.all(now)
		for i, r := range d.layout.Rings {
			for queue := range r.Slots {
				q, early := all[0], int64(0)
				if all = all[1:]; i == 0 {
					early = d.early
				}
				ahead, begins := q.Expires.UnixMilli()-now.UnixMilli(), q.Expires.UnixMilli()+early
				if ahead <= 0 || ahead > r.Slots*r.Width || begins%r.Width != 0 || begins/r.Width%r.Slots != queue {
					t.Errorf("%s expires in %d ms, and its slot begins at %d", q.Name, ahead, begins)
				}
			}
		}
	}
}
