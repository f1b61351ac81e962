package provider

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/drip-go/drip"
)

// Preset has the published limits of an API. It is a starting point: providers change limits, have other ones for some
// customers, and count the calls of others under the same limit. Use a Transport to react to their refusals.
type Preset struct {
	// Name of the API, which Named finds.
	Name string

	// About says what the limits count, and what this preset leaves out. It may be empty.
	About string

	// Entity says whose limit it is. Use its ID as the entity.
	Entity string

	// Rules are the limits, the one with the shortest window first. A window whose beginning the provider does not tell
	// is a sliding window. If it is a day long, a quarter of it may run at once.
	Rules []Rule

	// Shared are the limits that entities share, by name, such as the limit of the app or of the user. Nil if none is
	// known.
	Shared map[string][]Rule

	// Wait is how long to wait after a refusal without a time to wait. Set Transport.Wait to it.
	Wait time.Duration

	// Source is the page where the provider states the limits. Checked is the month in which the project compared them
	// with a copy of that page; some copies are older.
	Source, Checked string
}

// Named returns the preset of that name. It ignores case, blanks and punctuation: "xero", "shopify-graphql-admin". Its
// error lists the presets whose names begin with the same word.
func Named(name string) (Preset, error) {
	var near []string
	wanted := words(name)
	for _, p := range Presets() {
		has := words(p.Name)
		if strings.Join(has, "") == strings.Join(wanted, "") {
			return p, nil
		}
		if len(wanted) > 0 && has[0] == wanted[0] {
			near = append(near, fmt.Sprintf("%q", p.Name))
		}
	}
	if near == nil {
		return Preset{}, fmt.Errorf("provider: there is no preset %q; Presets and \"drip help presets\" list all", name)
	}
	return Preset{}, fmt.Errorf("provider: there is no preset %q; there are %s", name, strings.Join(near, ", "))
}

// words returns the words of a name, in lower case.
func words(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// Limit returns the drip limit that keeps the preset's Rules; see the function Limit.
func (p Preset) Limit(travel time.Duration) (drip.Limit, error) { return Limit(travel, p.Rules...) }

// Options returns the options of a bucket that keeps all of the preset's limits, including the shared ones; see the
// functions Limit and Options. Every operation is within all of them unless its Request.Within says otherwise. When the
// provider refuses a call because of a shared limit, call Bucket.Throttled with its drip.SharedID.
func (p Preset) Options(travel time.Duration) (drip.Options, error) {
	own, err := p.Limit(travel)
	if err != nil {
		return drip.Options{}, err
	}
	o := Options(own)
	for name, rules := range p.Shared {
		l, err := Limit(travel, rules...)
		if err != nil {
			return drip.Options{}, fmt.Errorf("%w, of the limit %q", err, name)
		}
		if l.Concurrency == unlimited {
			l.Concurrency = 0
		}
		if o.Shared == nil {
			o.Shared = map[string]drip.Limit{}
		}
		o.Shared[name] = l
	}
	return o, nil
}

const (
	day     = 24 * time.Hour
	checked = "2026-11"
)

// Presets returns the presets whose numbers are the same for every account. Each call makes new ones. OpenAI, Anthropic
// and Gemini make presets from the numbers of an account.
func Presets() []Preset {
	return slices.Concat(
		shopify(), stripe(), gitHub(), hubSpot(), slack(), salesforce(), amazon(), amazonApps(), xero(), quickBooks(),
		airtable(), notion(), shopline(), qonto(), asaas(), anthropicTier1(),
	)
}

// variant is a preset that differs from others of its provider in this.
type variant struct {
	name  string
	rules []Rule
}

func rules(r ...Rule) []Rule { return r }

// each makes a preset of each variant. Its name is p's followed by the variant's.
func (p Preset) each(variants ...variant) (all []Preset) {
	for _, v := range variants {
		q := p
		q.Name, q.Rules, q.Checked = p.Name+v.name, v.rules, checked
		all = append(all, q)
	}
	return all
}

func shopify() []Preset {
	graphQL := Preset{
		Name: "Shopify GraphQL Admin", Entity: "app and store", Wait: time.Second,
		About: "Points: an operation's cost is its requestedQueryCost, and its actualQueryCost is settled. The size of the buckets " +
			"is not published: these are ten seconds' worth, not more than stores were seen to have. Parse reads the real size " +
			"from a response, and Status.Rules is the limit of that store.",
		Source: "https://shopify.dev/docs/apps/build/apis/graphql-admin/rate-limits",
	}
	rest := Preset{
		Name: "Shopify REST Admin", Entity: "app and store", Wait: time.Second,
		About:  "A legacy API. Of the plans that have more a second only the rate is known.",
		Source: "https://shopify.dev/docs/api/admin-rest/usage/rate-limits",
	}
	return append(graphQL.each(
		variant{"", rules(LeakyBucket(1000, 100))},
		variant{", Advanced", rules(LeakyBucket(2000, 200))},
		variant{", Plus", rules(LeakyBucket(10000, 1000))},
		variant{", Enterprise", rules(LeakyBucket(20000, 2000))},
	), rest.each(
		variant{"", rules(LeakyBucket(40, 2))},
		variant{", Advanced", rules(LeakyBucket(40, 4))},
		variant{", Plus", rules(LeakyBucket(40, 20))},
	)...)
}

func stripe() []Preset {
	account := Preset{
		Name: "Stripe, ", Entity: "account", Wait: time.Second,
		About: "An account has 100 calls a second, 25 in a sandbox; and 25 of each endpoint, such as POST /v1/payment_intents, but " +
			"20 of search, and of files 20 that read and 20 that write. How it counts a second is not published.",
		Source: "https://docs.stripe.com/rate-limits",
	}
	endpoints := account
	endpoints.Entity = "endpoint"
	endpoints.Shared = map[string][]Rule{"account": rules(SlidingWindow(100, time.Second))}
	return append(account.each(
		variant{"live", rules(SlidingWindow(100, time.Second))},
		variant{"sandbox", rules(SlidingWindow(25, time.Second))},
	), endpoints.each(
		variant{"the endpoints of one account", rules(SlidingWindow(25, time.Second))},
	)...)
}

func gitHub() []Preset {
	return Preset{
		Name: "GitHub ", Entity: "user or installation", Wait: time.Minute,
		About: "REST: 900 points a minute, 1 for a call that reads and 5 for one that writes, and 5,000 calls an hour, or 15,000 for " +
			"an organization of Enterprise Cloud, both charged with an operation's cost here; 100 calls at a time. Calls that make " +
			"content, such as issues, have a limit besides.",
		Source: "https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api",
	}.each(
		variant{"REST", rules(SlidingWindow(900, time.Minute), SlidingWindow(5000, time.Hour).Burst(1250), Concurrency(100))},
		variant{"REST, Enterprise Cloud", rules(SlidingWindow(900, time.Minute), SlidingWindow(15000, time.Hour).Burst(3750), Concurrency(100))},
		variant{"content", rules(SlidingWindow(80, time.Minute), SlidingWindow(500, time.Hour).Burst(125))},
	)
}

func hubSpot() []Preset {
	return Preset{
		Name: "HubSpot, ", Entity: "app and portal", Wait: 10 * time.Second,
		About: "The plans are for apps that are distributed privately: the ten seconds are an app's, the day is shared by all apps of a " +
			"portal and ends at its midnight. Sources differ on the day of Professional; this is the lowest. An app of the marketplace has " +
			"the same limit in each portal, whatever its plan.",
		Source: "https://developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines",
	}.each(
		variant{"Free and Starter", rules(SlidingWindow(100, 10*time.Second), SlidingWindow(250_000, day).Burst(62_500))},
		variant{"Professional", rules(SlidingWindow(190, 10*time.Second), SlidingWindow(625_000, day).Burst(156_250))},
		variant{"Enterprise", rules(SlidingWindow(190, 10*time.Second), SlidingWindow(1_000_000, day).Burst(250_000))},
		variant{"marketplace app", rules(SlidingWindow(110, 10*time.Second))},
		variant{"search", rules(SlidingWindow(4, time.Second))},
	)
}

func slack() []Preset {
	return Preset{
		Name: "Slack, tier ", Entity: "app, workspace and method", Wait: time.Minute,
		About: "At least so many a minute of each method; bursts above are often let through. A method of tier 1 has 1 a minute, and " +
			"chat.postMessage 1 a second of a channel, which no window of drip keeps: let Concurrency(1) and Throttled do it.",
		Source: "https://docs.slack.dev/apis/web-api/rate-limits",
	}.each(
		variant{"2", rules(SlidingWindow(20, time.Minute))},
		variant{"3", rules(SlidingWindow(50, time.Minute))},
		variant{"4", rules(SlidingWindow(100, time.Minute))},
	)
}

func salesforce() []Preset {
	return Preset{
		Name: "Salesforce", Entity: "organization", Wait: time.Minute,
		About: "Editions Enterprise and Professional: 100,000 calls in any 24 hours, and 1,000 more for each licence, which this does " +
			"not count; 25 calls at a time that take 20 seconds or more, which here all do.",
		Source: "https://developer.salesforce.com/docs/atlas.en-us.salesforce_app_limits_cheatsheet.meta/salesforce_app_limits_cheatsheet/salesforce_app_limits_platform_api.htm",
	}.each(variant{"", rules(SlidingWindow(100_000, day).Burst(25_000), Concurrency(25))})
}

func sellingPartner() Preset {
	return Preset{
		Name: "Amazon SP-API ", Entity: "account, application and operation", Wait: time.Second,
		About: "The defaults; some accounts have other limits. Of some operations an application has a limit over all accounts as " +
			"well, of which only the rate is published: here it has no burst.",
		Source: "https://developer-docs.amazon.com/sp-api/docs/usage-plans-and-rate-limits",
	}
}

func amazon() []Preset {
	return sellingPartner().each(
		variant{"getOrders", rules(TokenBucket(20, 0.0167))},
		variant{"getOrder, getOrderItems", rules(TokenBucket(30, 0.5))},
		variant{"createFeed", rules(TokenBucket(15, 0.0083))},
		variant{"createFeedDocument", rules(TokenBucket(15, 0.5))},
		variant{"getFeed", rules(TokenBucket(15, 2))},
		variant{"fulfilment outbound", rules(TokenBucket(30, 2))},
	)
}

// amazonApps are the operations for which an app has a rate over all accounts.
func amazonApps() (all []Preset) {
	for _, o := range []struct {
		name string
		own  Rule
		app  int
		api  string
	}{
		{"getCatalogItem", TokenBucket(2, 2), 250, "catalog-items"},
		{"searchCatalogItems", TokenBucket(2, 2), 500, "catalog-items"},
		{"getListingsRestrictions", TokenBucket(10, 5), 100, "listings-restrictions"},
		{"getDefinitionsProductType", TokenBucket(5, 5), 100, "product-type-definitions"},
		{"searchDefinitionsProductTypes", TokenBucket(5, 5), 100, "product-type-definitions"},
	} {
		p := sellingPartner()
		p.Shared = map[string][]Rule{"app": rules(SlidingWindow(o.app, time.Second))}
		p.Source = "https://developer-docs.amazon.com/sp-api/docs/" + o.api + "-api-rate-limits"
		all = append(all, p.each(variant{o.name, rules(o.own)})...)
	}
	return all
}

func xero() []Preset {
	calls := func(aDay int) []Rule {
		return rules(SlidingWindow(60, time.Minute), SlidingWindow(aDay, day).Burst(aDay/4), Concurrency(5))
	}
	return Preset{
		Name: "Xero", Entity: "tenant", Wait: time.Minute,
		About: "All tenants of an app have 10,000 calls a minute together. An app of the free tier, Starter, has 1,000 calls a day of each " +
			"tenant, one of any other tier 5,000.",
		Shared: map[string][]Rule{"app": rules(SlidingWindow(10_000, time.Minute))},
		Source: "https://developer.xero.com/documentation/best-practices/api-call-efficiencies/rate-limits",
	}.each(variant{"", calls(5000)}, variant{", Starter", calls(1000)})
}

func quickBooks() []Preset {
	return Preset{
		Name: "QuickBooks Online", Entity: "realm and app", Wait: time.Minute,
		About: "10 calls a second of an app, and 500 a minute, which all apps of a company share. Batches have limits of their own. An app of " +
			"the Builder tier also has 500,000 CorePlus calls a month, which this leaves out.",
		Source: "https://developer.intuit.com/app/developer/qbo/docs/learn/limits-and-throttles",
	}.each(
		variant{"", rules(SlidingWindow(10, time.Second), SlidingWindow(500, time.Minute))},
		variant{" batch", rules(SlidingWindow(40, time.Minute))},
	)
}

func airtable() []Preset {
	return Preset{
		Name: "Airtable", Entity: "base", Wait: 30 * time.Second,
		About: "The bases that the tokens of one user reach have 50 calls a second. After a refusal nothing succeeds for 30 seconds. A " +
			"workspace of the plan Free or Team also has a limit a month, which this leaves out.",
		Shared: map[string][]Rule{"user": rules(SlidingWindow(50, time.Second))},
		Source: "https://airtable.com/developers/web/api/rate-limits",
	}.each(variant{"", rules(SlidingWindow(5, time.Second))})
}

func notion() []Preset {
	return Preset{
		Name: "Notion", Entity: "connection", Wait: time.Minute,
		About:  "3 calls a second on average, counted by the minute. The workspace's plan may allow more; its connections share another limit.",
		Source: "https://developers.notion.com/reference/request-limits",
	}.each(variant{"", rules(SlidingWindow(180, time.Minute))})
}

func shopline() []Preset {
	return Preset{
		Name: "Shopline", Entity: "app and store", Wait: time.Second,
		Source: "https://developer.shopline.com/docs/apps/api-instructions-for-use/rest-admin-api/flow-control",
	}.each(variant{"", rules(LeakyBucket(40, 4))})
}

func qonto() []Preset {
	return Preset{
		Name: "Qonto", Entity: "IP address", Wait: 10 * time.Second,
		Source: "https://docs.qonto.com/get-started/general/rate-limitations",
	}.each(variant{"", rules(SlidingWindow(1000, 10*time.Second), SlidingWindow(10_000, 10*time.Minute))})
}

func asaas() []Preset {
	return Preset{
		Name: "Asaas", Entity: "account", Wait: time.Minute,
		About:  "The twelve hours begin with the first call; 50 calls that read at a time.",
		Source: "https://docs.asaas.com/docs/api-limits-1",
	}.each(variant{"", rules(SlidingWindow(25_000, 12*time.Hour).Burst(6250), Concurrency(50))})
}
