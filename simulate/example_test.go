package simulate_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/simulate"
)

// sale is a shop whose provider has a leaky bucket of 40 that drains by 2 a second, and 200 messages at once.
const sale = `{
	"name": "sale",
	"preset": "shopify rest admin",
	"arrivals": [{"kind": "burst", "count": 200, "at": "1m"}],
	"operation": "200ms",
	"travel": "50ms"
}`

// Drip and other policies with the same load.
func ExampleScenario_Run() {
	s, err := simulate.Parse("sale.json", []byte(sale))
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := s.Run(context.Background(), 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range report.Results {
		fmt.Printf("%s: %d messages in %v, postponements at most %d, calls over the limit %d\n",
			r.Policy, r.Done, r.Makespan, r.PostponementsMax, r.OverLimit)
	}
	// Output:
	// admit: 200 messages in 1m21.205s, postponements at most 1, calls over the limit 0
	// classic: 200 messages in 1m21.205s, postponements at most 1, calls over the limit 0
	// retry-after: 200 messages in 1m21.205s, postponements at most 162, calls over the limit 0
	// optimum: 200 messages in 1m21.205s, postponements at most 0, calls over the limit 0
}

// A test that holds the options of a program against the provider's rules.
func ExampleParse() {
	s, err := simulate.Parse("sale.json", []byte(sale))
	if err != nil {
		fmt.Println(err)
		return
	}
	s.Options = drip.Options{Size: 50, RefreshRate: 2, RefreshInterval: time.Second} // as the program has them
	report, err := s.Run(context.Background(), 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Results[0].OverLimit, "calls over the limit")
	// Output:
	// 10 calls over the limit
}

// Limits that entities share, as a table.
func ExampleReport_WriteTable() {
	s, err := simulate.Parse("shops.json", []byte(`{
		"name": "ten shops",
		"limits": {"size": 38, "rate": 1, "interval": "500ms"},
		"shared": {"app": {"size": 10}},
		"entities": 10,
		"arrivals": [{"kind": "burst", "count": 30, "at": "1s"}],
		"operation": "100ms"
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := s.Run(context.Background(), 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := report.WriteTable(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ten shops
	//                               admit  optimum
	//   messages handled              300      300
	//   postponements, mean          1.59     0.00
	//     99 % have at most             3        0
	//     most                          3        0
	//   asked in hand, mean          0.19     0.00
	//   used of app: 10 every 1s  100.0 %  100.0 %
	//   makespan                   29.1 s   29.1 s
	//   wait, mean                 14.5 s   14.5 s
	//     99 % wait at most          29 s     29 s
	//     longest                    29 s     29 s
	//   overtaken                       0        0
	//   calls over the limit            0        0
}

// A file, and a chart of it.
func ExampleRead() {
	s, err := simulate.Read("sale.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := s.Run(context.Background(), 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	chart, err := os.Create("sale.svg")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer chart.Close()
	if err := report.WriteSVG(chart); err != nil {
		fmt.Println(err)
	}
}
