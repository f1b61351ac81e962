package provider

import (
	"fmt"
	"time"

	"github.com/drip-go/drip"
)

// Preset is what is known of the limits of an API. It is where to begin: providers change limits, have other ones for
// some customers, and count what others do under the same limit. A Transport hears of that.
type Preset struct {
	// Name of the API.
	Name string

	// Entity says whose limit it is, which is what to use as entity.
	Entity string

	// Rules are the limits, the one with the shortest window first. Windows whose beginning the provider does not tell are
	// sliding ones, and of those of a day a quarter may run at once.
	Rules []Rule

	// Shared are the limits that entities have together, by name: that of the app, of the user. Nil if none is known.
	Shared map[string][]Rule

	// Wait is how long to wait after a refusal that does not say; for Transport.Wait.
	Wait time.Duration

	// Source is where the provider says so, and Checked the month in which it was compared with a copy of that page, some
	// of which are older.
	Source, Checked string
}

// Limit is the drip limit that keeps the preset's; see the function Limit.
func (p Preset) Limit(travel time.Duration) (drip.Limit, error) { return Limit(travel, p.Rules...) }

// Options are those of a bucket that keeps all of the preset's limits, the shared ones as well; see the functions Limit
// and Options. Every operation is within all of them unless its Request.Within says otherwise. When the provider refuses a
// call because of a shared limit, tell Bucket.Throttled its drip.SharedID.
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

const day = 24 * time.Hour

// Shopify. GraphQL counts points: the cost of an operation is its requestedQueryCost, and what it costs really,
// actualQueryCost, is settled. How large the buckets are is not published: these are ten seconds' worth, which is not more
// than shops were seen to have; Parse reads the real size from a response, and Status.Rules is the limit of that shop.
// The REST API is a legacy one; of the plans that have more a second only the rate is known.
var (
	ShopifyGraphQL           = shopify("GraphQL Admin", LeakyBucket(1000, 100), graphQL)
	ShopifyGraphQLAdvanced   = shopify("GraphQL Admin, Advanced", LeakyBucket(2000, 200), graphQL)
	ShopifyGraphQLPlus       = shopify("GraphQL Admin, Plus", LeakyBucket(10000, 1000), graphQL)
	ShopifyGraphQLEnterprise = shopify("GraphQL Admin, Enterprise", LeakyBucket(20000, 2000), graphQL)
	ShopifyREST              = shopify("REST Admin", LeakyBucket(40, 2), rest)
	ShopifyRESTAdvanced      = shopify("REST Admin, Advanced", LeakyBucket(40, 4), rest)
	ShopifyRESTPlus          = shopify("REST Admin, Plus", LeakyBucket(40, 20), rest)
)

const (
	graphQL = "https://shopify.dev/docs/apps/build/apis/graphql-admin/rate-limits"
	rest    = "https://shopify.dev/docs/api/admin-rest/usage/rate-limits"
)

func shopify(name string, r Rule, source string) Preset {
	return Preset{"Shopify " + name, "app and store", []Rule{r}, nil, time.Second, source, "2026-11"}
}

// Stripe: an account has 100 calls a second, 25 in a sandbox; and 25 of each endpoint, such as POST /v1/payment_intents,
// but 20 of search, and of files 20 that read and 20 that write. How it counts a second is not published. StripeEndpoints
// is for the calls of one account, with the endpoint as entity.
var (
	Stripe          = stripe("live", "account", 100, nil)
	StripeSandbox   = stripe("sandbox", "account", 25, nil)
	StripeEndpoints = stripe("the endpoints of one account", "endpoint", 25, map[string][]Rule{"account": {SlidingWindow(100, time.Second)}})
)

func stripe(name, entity string, n int, shared map[string][]Rule) Preset {
	return Preset{
		"Stripe, " + name, entity, []Rule{SlidingWindow(n, time.Second)}, shared, time.Second,
		"https://docs.stripe.com/rate-limits", "2026-11",
	}
}

// GitHub's REST API: 900 points a minute, 1 for a call that reads and 5 for one that writes, and 5,000 calls an hour,
// or 15,000 for an organization of Enterprise Cloud, both charged with an operation's cost here; 100 calls at a time. Calls
// that make content, such as issues, have a limit besides.
var (
	GitHub           = gitHub("REST", SlidingWindow(900, time.Minute), SlidingWindow(5000, time.Hour).Burst(1250), Concurrency(100))
	GitHubEnterprise = gitHub("REST, Enterprise Cloud", SlidingWindow(900, time.Minute), SlidingWindow(15000, time.Hour).Burst(3750), Concurrency(100))
	GitHubContent    = gitHub("content", SlidingWindow(80, time.Minute), SlidingWindow(500, time.Hour).Burst(125))
)

func gitHub(name string, rules ...Rule) Preset {
	return Preset{
		"GitHub " + name, "user or installation", rules, nil, time.Minute,
		"https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api", "2026-11",
	}
}

// HubSpot: the ten seconds are an app's, the day is shared by all apps of a portal and ends at its midnight. Sources differ
// on the day of Professional; this is the lowest.
var (
	HubSpot             = hubSpot("Free and Starter", SlidingWindow(100, 10*time.Second), SlidingWindow(250_000, day).Burst(62_500))
	HubSpotProfessional = hubSpot("Professional", SlidingWindow(190, 10*time.Second), SlidingWindow(625_000, day).Burst(156_250))
	HubSpotEnterprise   = hubSpot("Enterprise", SlidingWindow(190, 10*time.Second), SlidingWindow(1_000_000, day).Burst(250_000))
	HubSpotSearch       = hubSpot("search", SlidingWindow(4, time.Second))
)

func hubSpot(name string, rules ...Rule) Preset {
	return Preset{
		"HubSpot, " + name, "app and portal", rules, nil, 10 * time.Second,
		"https://developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines", "2026-11",
	}
}

// Slack: at least so many a minute of each method; bursts above are often let through. A method of tier 1 has 1 a minute,
// and chat.postMessage 1 a second of a channel, which no window of drip keeps: let Concurrency(1) and Throttled do it.
var (
	SlackTier2 = slack("2", 20)
	SlackTier3 = slack("3", 50)
	SlackTier4 = slack("4", 100)
)

func slack(tier string, n int) Preset {
	return Preset{
		"Slack, tier " + tier, "app, workspace and method", []Rule{SlidingWindow(n, time.Minute)}, nil, time.Minute,
		"https://docs.slack.dev/apis/web-api/rate-limits", "2026-11",
	}
}

// Salesforce, editions Enterprise and Professional: 100,000 calls in any 24 hours, and 1,000 more for each licence, which
// this does not count; 25 calls at a time that take 20 seconds or more, which here all do.
var Salesforce = Preset{
	"Salesforce", "organization", []Rule{SlidingWindow(100_000, day).Burst(25_000), Concurrency(25)}, nil, time.Minute,
	"https://developer.salesforce.com/docs/atlas.en-us.salesforce_app_limits_cheatsheet.meta/salesforce_app_limits_cheatsheet/salesforce_app_limits_platform_api.htm", "2026-11",
}

// Amazon's Selling Partner API, by operation. These are the defaults; some accounts have other ones. Of some operations an
// application has a limit over all accounts as well, of which only the rate is published: here it has no burst.
var (
	AmazonGetOrders          = amazon("getOrders", TokenBucket(20, 0.0167))
	AmazonGetOrder           = amazon("getOrder, getOrderItems", TokenBucket(30, 0.5))
	AmazonCreateFeed         = amazon("createFeed", TokenBucket(15, 0.0083))
	AmazonCreateFeedDocument = amazon("createFeedDocument", TokenBucket(15, 0.5))
	AmazonGetFeed            = amazon("getFeed", TokenBucket(15, 2))
	AmazonFulfillment        = amazon("fulfilment outbound", TokenBucket(30, 2))

	AmazonGetCatalogItem        = amazonApp("getCatalogItem", TokenBucket(2, 2), 250, "catalog-items")
	AmazonSearchCatalogItems    = amazonApp("searchCatalogItems", TokenBucket(2, 2), 500, "catalog-items")
	AmazonListingsRestrictions  = amazonApp("getListingsRestrictions", TokenBucket(10, 5), 100, "listings-restrictions")
	AmazonProductTypeDefinition = amazonApp("getDefinitionsProductType", TokenBucket(5, 5), 100, "product-type-definitions")
	AmazonSearchProductTypes    = amazonApp("searchDefinitionsProductTypes", TokenBucket(5, 5), 100, "product-type-definitions")
)

func amazon(operation string, r Rule) Preset {
	return Preset{
		"Amazon SP-API " + operation, "account, application and operation", []Rule{r}, nil, time.Second,
		"https://developer-docs.amazon.com/sp-api/docs/usage-plans-and-rate-limits", "2026-11",
	}
}

// amazonApp is an operation of which the app has so many a second, over all accounts.
func amazonApp(operation string, r Rule, app int, api string) Preset {
	p := amazon(operation, r)
	p.Shared = map[string][]Rule{"app": {SlidingWindow(app, time.Second)}}
	p.Source = "https://developer-docs.amazon.com/sp-api/docs/" + api + "-api-rate-limits"
	return p
}

// Xero: 60 calls in a minute, 5,000 in a day and 5 at a time. All tenants of an app have 10,000 a minute together.
var Xero = Preset{
	"Xero", "tenant", []Rule{SlidingWindow(60, time.Minute), SlidingWindow(5000, day).Burst(1250), Concurrency(5)},
	map[string][]Rule{"app": {SlidingWindow(10_000, time.Minute)}}, time.Minute,
	"https://developer.xero.com/faq/limits", "2026-11",
}

// QuickBooks Online: 10 calls a second of an app, and 500 a minute, which all apps of a company share. Batches have limits
// of their own.
var (
	QuickBooks      = quickBooks("", SlidingWindow(10, time.Second), SlidingWindow(500, time.Minute))
	QuickBooksBatch = quickBooks(" batch", SlidingWindow(40, time.Minute))
)

func quickBooks(name string, rules ...Rule) Preset {
	return Preset{
		"QuickBooks Online" + name, "realm and app", rules, nil, time.Minute,
		"https://developer.intuit.com/app/developer/qbo/docs/learn/limits-and-throttles", "2026-11",
	}
}

// Airtable: 5 calls a second of a base, and 50 of all bases with the tokens of one user. After a refusal nothing succeeds
// for 30 seconds.
var Airtable = Preset{
	"Airtable", "base", []Rule{SlidingWindow(5, time.Second)},
	map[string][]Rule{"user": {SlidingWindow(50, time.Second)}}, 30 * time.Second,
	"https://airtable.com/developers/web/api/rate-limits", "2026-11",
}

// Notion: 3 calls a second on average, counted by the minute. The workspace's plan may allow more; its connections share
// another limit.
var Notion = Preset{
	"Notion", "connection", []Rule{SlidingWindow(180, time.Minute)}, nil, time.Minute,
	"https://developers.notion.com/reference/request-limits", "2026-11",
}

// Shopline: a leaky bucket of 40 that drains by 4 a second.
var Shopline = Preset{
	"Shopline", "app and store", []Rule{LeakyBucket(40, 4)}, nil, time.Second,
	"https://developer.shopline.com/docs/apps/api-instructions-for-use/rest-admin-api/flow-control", "2026-11",
}

// Qonto: 1,000 calls in ten seconds and 10,000 in ten minutes.
var Qonto = Preset{
	"Qonto", "IP address", []Rule{SlidingWindow(1000, 10*time.Second), SlidingWindow(10_000, 10*time.Minute)}, nil, 10 * time.Second,
	"https://docs.qonto.com/get-started/general/rate-limitations", "2026-11",
}

// Asaas: 25,000 calls in twelve hours that begin with the first one, and 50 that read at a time.
var Asaas = Preset{
	"Asaas", "account", []Rule{SlidingWindow(25_000, 12*time.Hour).Burst(6250), Concurrency(50)}, nil, time.Minute,
	"https://docs.asaas.com/docs/api-limits-1", "2026-11",
}

// Presets are all that are the same for everybody, in the order of this page. See OpenAI and Gemini besides.
func Presets() []Preset {
	return []Preset{
		ShopifyGraphQL, ShopifyGraphQLAdvanced, ShopifyGraphQLPlus, ShopifyGraphQLEnterprise,
		ShopifyREST, ShopifyRESTAdvanced, ShopifyRESTPlus,
		Stripe, StripeSandbox, StripeEndpoints,
		GitHub, GitHubEnterprise, GitHubContent,
		HubSpot, HubSpotProfessional, HubSpotEnterprise, HubSpotSearch,
		SlackTier2, SlackTier3, SlackTier4,
		Salesforce,
		AmazonGetOrders, AmazonGetOrder, AmazonCreateFeed, AmazonCreateFeedDocument, AmazonGetFeed, AmazonFulfillment,
		AmazonGetCatalogItem, AmazonSearchCatalogItems, AmazonListingsRestrictions, AmazonProductTypeDefinition, AmazonSearchProductTypes,
		Xero,
		QuickBooks, QuickBooksBatch,
		Airtable, Notion, Shopline, Qonto, Asaas,
		AnthropicTier1,
	}
}
