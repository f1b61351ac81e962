.PHONY: help demo test lint fuzz bench

help: ## What there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Watch two consumers keep a dozen shops exactly at their limits, in under a minute
	@go build -o bin/demo ./examples/demo && scripts/servers run rabbitmq redis -- bin/demo

test: ## Run all tests against real servers, with the race detector
	@scripts/test

lint: ## Check format, vet, staticcheck, go.mod, dependencies and known vulnerabilities
	@scripts/lint

fuzz: ## Fuzz the decision, five minutes
	go test ./storage -run '^$$' -fuzz FuzzDecide -fuzztime 5m

bench: ## Print the figures of the README
	@cd benchmarks && ../scripts/servers run redis -- go test -run '^$$' -bench .
	@scripts/servers run rabbitmq -- go test ./consumer -run '^$$' -bench . -benchtime 1x
