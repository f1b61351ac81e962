package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage"
)

// inspect shows the use of the last hour, of an entity and of a shared limit, in 80 columns.
func TestInspectUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, url := newMemory(t)
		b := buckettest.New(t, drip.Options{
			Size: 9, RefreshRate: 6, RefreshInterval: time.Minute, Windows: []drip.Window{{Size: 10_000, RefreshInterval: time.Minute, Unit: "tokens"}},
			Shared: map[string]drip.Limit{"app": {Size: 2, RefreshInterval: time.Minute}}, History: true, Storage: s,
		})
		for i := range 8 { // of the minutes 0 to 7
			for range i {
				a := buckettest.Admit(t, b, "shop-1", drip.Request{Costs: drip.Costs{"tokens": 100}, Within: []string{}})
				if err := b.Settle(t.Context(), "shop-1", a.Lease, 1, drip.Costs{"tokens": 10 * i}); i < 7 && err != nil {
					t.Fatal(err)
				}
			}
			_, err := b.GetDelay(t.Context(), "shop-2")
			ok(t, err)
			time.Sleep(time.Minute)
		}
		time.Sleep(2 * time.Minute)
		const limits = `--limits={"size":9,"rate":6,"interval":"1m","windows":[{"size":10000,"interval":"1m","unit":"tokens"}]}`
		for args, want := range map[string]string{
			"": "used        28 calls in the last hour, 7.8 % of the limit\n" +
				"            ..................................................▂▃▄▅▆▇█...\n" +
				"            1400 tokens in the last hour\n" +
				"            ..................................................▁▁▂▃▅▆█...\n",
			limits: "            1400 tokens in the last hour, 0.2 % of the limit\n",
		} {
			text := must(t, strings.Fields("inspect "+url+" shop-1 "+args)...)
			if !strings.Contains(text, want) {
				t.Errorf("inspect %s:\n%s\nwant\n%s", args, text, want)
			}
			narrow(t, text)
		}
		prints(t, "used        8 calls in the last hour, 6.7 % of the limit\n", "inspect", url, drip.SharedID("app"))
		var got struct {
			Used []struct {
				Unit    string
				Total   int
				From    time.Time
				Minutes []int
			}
		}
		ok(t, json.Unmarshal([]byte(must(t, "inspect", url, "shop-1", "--json")), &got))
		if len(got.Used) != 2 || got.Used[0].Total != 28 || got.Used[1].Unit != "tokens" || got.Used[1].Minutes[56] != 490 || !got.Used[0].From.Equal(time.Now().Add(-59*time.Minute)) {
			t.Errorf("JSON has %+v", got.Used)
		}
		// A record whose numbers are beyond all limits is shown as well.
		record := fmt.Sprintf(`{"v":1,"from":%d,"used":{"":[1,%d]}}`, time.Now().Unix()/60-1, math.MaxInt64)
		state := storage.State{Data: []byte(record), Now: time.Now().UnixMilli(), Until: time.Now().Add(time.Hour).UnixMilli()}
		ok(t, s.Set(t.Context(), "history:garbage", state, storage.NoRevision))
		prints(t, "..▁█\n", "inspect", url, "garbage")
		if text := must(t, "inspect", url, "nobody"); strings.Contains(text, "used") {
			t.Errorf("nobody:\n%s", text)
		}
		if top := must(t, "top", url); strings.Contains(top, "history") {
			t.Errorf("top shows a history:\n%s", top)
		}
	})
}
