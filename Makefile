# Every target sets up what it needs. `make help` explains them.

.DEFAULT_GOAL := help
STAMP := .venv/.shoal-setup
BIN := .venv/bin

# The first Python that runs is enough to start scripts/setup.py, which then looks for a
# supported one and explains what is missing.
$(STAMP): requirements/all.txt requirements/build.txt pyproject.toml scripts/setup.py
	@python3 scripts/setup.py

.PHONY: setup
setup: $(STAMP) ## make .venv with everything locked in requirements/ (done by every other target)

.PHONY: demo
demo: setup ## send messages through source, mirror and target, and judge them; then plant one loss
	@$(BIN)/shoal demo

.PHONY: help
help: ## explain every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile
