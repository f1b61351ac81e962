.PHONY: help demo recording dashboard pictures drawings site test kills rabbitmq4 lint fuzz compare

help: ## What there is
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Watch two consumers keep a dozen shops exactly at their limits, for 40 seconds
	@go build -C examples/demo -o ../../bin/demo . && scripts/servers run rabbitmq redis -- bin/demo

recording: ## Record the demo's screen into docs/demo.svg
	@go build -C examples/demo -o ../../bin/demo . && scripts/servers run rabbitmq redis -- bin/demo -record docs/demo.svg

dashboard: ## Check that each panel of the dashboard shows data, and draw them into docs/dashboard.svg
	@cd examples/observability && ../../scripts/servers run rabbitmq -- go test -count=1 -run EveryPanel . -svg "$(CURDIR)/docs/dashboard.svg"

pictures: ## Draw the limits page over the demo into docs/page-*.png; takes Chromium
	@go build -C examples/demo -o ../../bin/demo . && go run ./scripts/pictures -into docs bin/demo

drawings: ## Draw the charts of README.md and docs/concepts.md anew, from runs in virtual time
	@go run ./scripts/drawings -into docs

site: ## Build the searchable documentation into bin/site
	@scripts/site

test: ## Run all tests against real servers, with the race detector
	@scripts/test

kills: ## Kill consumers, Redis and RabbitMQ for a minute of each kind; count messages lost, over the limit and early
	@DRIP_KILLS=60s scripts/test -timeout 40m -parallel 2 -run 'TestKills' -v ./consumer

rabbitmq4: ## Run the tests of consumer and adapters/amqp10 against RabbitMQ 4.0 and 4.3; takes root
	@scripts/rabbitmq4

lint: ## Check format, vet, staticcheck, go.mod, spelling, dependencies and known vulnerabilities
	@scripts/lint

fuzz: ## Fuzz the decision, the limiter and the parsers, a minute each
	@for p in ./decision ./storage ./limiter ./provider; do for f in $$(go test $$p -list '^Fuzz' | grep '^Fuzz'); do \
		go test $$p -run '^$$' -fuzz "^$$f\$$" -fuzztime 1m -fuzzminimizetime 100x || exit 1; done; done

compare: ## Run every comparison, and write the figures of docs/speed.md anew
	@scripts/compare
