package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// plan is the messages to publish: bursts of messages, each for one shop. A message is an order, which has a number.
type plan struct {
	shops  []shopPlan
	bursts []burst // in the order of their times
	orders int     // numbered from 0
	urgent int     // the number of the first one that is urgent; so are those after it
}

// aboutStock reports whether an order calls the endpoint that has a limit of its own.
func aboutStock(order int) bool { return order%10 == 3 }

type shopPlan struct {
	name   string
	orders int
}

type burst struct {
	shop         int
	at           time.Duration // after the beginning
	first, after int           // its orders: first ≤ order < after
}

// newPlan divides about that many messages among the shops: some get a fifth more than others, in one to three
// bursts within the first seconds. A later burst mostly finds the shop still busy with the burst before. One message in
// a hundred is urgent; the urgent messages come one by one, while the shops are busy.
func newPlan(shops, messages int) plan {
	var p plan
	urgent := messages / 100
	messages -= urgent
	for i := range shops {
		_, spread := math.Modf(float64(i+1) * math.Phi) // 0 to 1, evenly for any number of shops
		share := 0.9 + 0.2*spread
		n := max(1, int(share*float64(messages)/float64(shops)+0.5))
		p.shops = append(p.shops, shopPlan{fmt.Sprintf("shop-%02d", i+1), n})
		bursts := 1 + i%3
		for b := range bursts {
			p.bursts = append(p.bursts, burst{
				shop:  i,
				at:    time.Duration(i%4)*600*time.Millisecond + time.Duration(b)*1700*time.Millisecond,
				first: p.orders + n*b/bursts,
				after: p.orders + n*(b+1)/bursts,
			})
		}
		p.orders += n
	}
	p.urgent = p.orders
	busy := time.Duration(messages*3/(2*shops*leakRate)) * time.Second
	for i := range urgent {
		shop := i % shops
		p.shops[shop].orders++
		p.bursts = append(p.bursts, burst{shop: shop, at: 5*time.Second + time.Duration(i)*busy*2/3/time.Duration(urgent), first: p.orders, after: p.orders + 1})
		p.orders++
	}
	slices.SortStableFunc(p.bursts, func(a, b burst) int { return int(a.at - b.at) })
	return p
}

// shortest returns how long the messages need at the app's limit, or one shop's messages at its own limit, whichever is longer.
func (p plan) shortest(appRate int) time.Duration {
	most := 0
	for _, s := range p.shops {
		most = max(most, s.orders)
	}
	return time.Duration(max(most/refreshRate, p.orders/appRate)) * time.Second
}
