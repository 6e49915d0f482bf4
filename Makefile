# Everything that a person or a build server does with this repository.
# The targets install what they need on Debian or Ubuntu (as root) and say so.

SHELL := /bin/bash
CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
TOOLS := scripts/setup

.PHONY: help build demo test bench lint fmt install uninstall clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the release binary: target/release/brood
	@$(TOOLS) build
	$(CARGO) build --release --locked -p brood

demo: build ## Run real test-suites in 8 sandboxes of one template (a few minutes the first time)
	@$(TOOLS) demo
	@scripts/demo target/release/brood

test: ## Formatting, lints, all tests as root, and a check that nothing is left behind
	@$(TOOLS) test
	@scripts/test

bench: build ## Measure this host: `brood bench sandbox`
	@$(TOOLS) demo
	target/release/brood bench sandbox --data target/bench

lint: ## Lints, with warnings denied
	@$(TOOLS) build
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

fmt: ## Format the code
	$(CARGO) fmt --all

install: build ## Install the binary, the unit and the completions below PREFIX
	install -D -m 755 target/release/brood $(DESTDIR)$(PREFIX)/bin/brood
	install -D -m 644 packaging/brood.toml $(DESTDIR)/etc/brood/brood.toml.example
	sed 's#/usr/local/bin#$(PREFIX)/bin#' packaging/brood.service | install -D -m 644 /dev/stdin $(DESTDIR)/etc/systemd/system/brood.service
	target/release/brood completion bash | install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/share/bash-completion/completions/brood
	target/release/brood completion zsh | install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_brood
	target/release/brood completion fish | install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/brood.fish

uninstall: ## Remove what install installed
	rm -f $(DESTDIR)$(PREFIX)/bin/brood $(DESTDIR)/etc/systemd/system/brood.service $(DESTDIR)/etc/brood/brood.toml.example
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/brood
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_brood
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/brood.fish

clean: ## Remove what was built
	$(CARGO) clean
