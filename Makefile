# One command for each thing to do; `make help` lists them. Everything built lies in build/, which
# is laid out like an installation: env/ lib/ include/ bin/, and go/ models/ beside them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:

PREFIX ?= /opt/libsemantic
# Of make soak; default: 10 for callers while models come and go, 60 for all calls and fuzzing.
MINUTES ?=
CALLS ?= 100000
ifdef PYTHON
export PYTHON
endif
# openvino or gpu: another build of ONNX Runtime, in an environment of its own.
PROVIDER ?=
provider_option = $(if $(PROVIDER),--provider $(PROVIDER))

# ONNX Runtime reports to its makers unless told not to. The library sees to it by itself.
export ORT_DISABLE_TELEMETRY := 1

VENV := build/env$(if $(PROVIDER),-$(PROVIDER))
PY := $(VENV)/bin/python
VENV_STAMP := $(VENV)/.libsemantic
LIBRARY := build/lib/libsemantic.so.0
LIBRARY_SOURCES := build_ffi.py ffi/generate.py $(wildcard include/*.h ffi/*.c ffi/*.h \
	ffi/candle/*.c ffi/candle/generate.py ffi/candle/table.py)

# Only what exists, since mypy given a folder without Python files stops with an error.
has_python = $(if $(wildcard $(1)),$(shell find $(1) -name '*.py' -print -quit))
PYTHON_PATHS = $(foreach path,build_ffi.py tools bench examples tests,$(if \
	$(call has_python,$(path)),$(path)))
C_FILES = $(shell find include ffi examples bench tests -name '*.[ch]' | sort)

export SEMANTIC_TEST_MODELS := $(CURDIR)/tests/golden/models

STATICCHECK_VERSION := 0.8.2
STATICCHECK := build/bin/staticcheck-$(STATICCHECK_VERSION)

GOFMT = "$$("$$(tools/find_go.sh)" env GOROOT)/bin/gofmt"

define need_compiler
@command -v $${CC:-cc} >/dev/null || { echo "error: no C compiler (cc); on Debian and Ubuntu, as root:" \
	"apt-get install gcc libc6-dev" >&2; exit 1; }
endef

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV_STAMP) ## make the Python environment build/env (PYTHON=..., PROVIDER=openvino or gpu)
	@echo "ready: $(VENV), $$($(PY) --version)"

# Asked every time, but written only when the requirements or the Python changed, so that nothing
# else is rebuilt.
$(VENV_STAMP): FORCE
	@python=$$(tools/find_python.sh $(VENV)) && "$$python" tools/setup_env.py $(provider_option) $(VENV)

.PHONY: FORCE
FORCE:

.PHONY: build
build: $(LIBRARY) ## build both libraries with their headers and pkg-config files

$(LIBRARY): $(VENV_STAMP) $(LIBRARY_SOURCES)
	$(need_compiler)
	$(PY) build_ffi.py --output build
	@test -e $@ || { echo "error: build_ffi.py made no $@" >&2; exit 1; }
	@touch $@

.PHONY: models
models: $(VENV_STAMP) ## fetch the demo models into build/models
	$(PY) tools/fetch_models.py build/models

.PHONY: demo
demo: $(LIBRARY) models ## build the Go demo and run it on the demo models
	tools/go.sh build -buildvcs=false -o ../build/bin/demo ./cmd/demo
	build/bin/demo build/models/rampart build/models/minilm

.PHONY: test
test: lint test-go test-python ## check everything: lint, Go tests, Python and C tests

.PHONY: test-python
test-python: $(LIBRARY) models ## run the Python and C tests (PYTEST_ARGS=... is passed on)
	$(PY) -m pytest $(PYTEST_ARGS)

.PHONY: test-go
test-go: $(LIBRARY) ## run the Go tests
	@# -count=1: Go's cached results know nothing of the library.
	tools/go.sh test -count=1 ./semantic/... ./cmd/... ./candle/...
	tools/go.sh test -count=1 -race ./native/...
	tools/go.sh with env CGO_ENABLED=0 go test -count=1 ./...

# The library of build/ in another environment.
in_environment = LIBSEMANTIC_PYTHON="$(CURDIR)/build/env-$(1)" build/env-$(1)/bin/python

.PHONY: test-openvino
test-openvino: $(LIBRARY) models ## run the tests of OpenVINO in build/env-openvino
	$(MAKE) setup PROVIDER=openvino
	$(call in_environment,openvino) -m pytest tests/providers/test_openvino.py $(PYTEST_ARGS)

.PHONY: test-gpu-absent
test-gpu-absent: $(LIBRARY) ## test in build/env-gpu that a GPU that is not there is never claimed
	$(MAKE) setup PROVIDER=gpu
	$(call in_environment,gpu) -m pytest tests/providers/test_gpu_absent.py $(PYTEST_ARGS)

# With the libraries of NVIDIA that pip has put into the environment, if it has.
.PHONY: test-gpu
test-gpu: $(LIBRARY) models ## on a machine with an NVIDIA GPU: test and measure it, print a table
	$(MAKE) setup PROVIDER=gpu
	folders=("$(CURDIR)"/build/env-gpu/lib/python3.*/site-packages/{nvidia/*/lib,tensorrt_libs}); \
		export LD_LIBRARY_PATH="$$(IFS=:; echo "$${folders[*]}")$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}"; \
		export NVIDIA_TF32_OVERRIDE=0; \
		$(call in_environment,gpu) -m pytest tests/providers/test_gpu.py $(PYTEST_ARGS); \
		$(call in_environment,gpu) bench/devices.py cpu cuda tensorrt

.PHONY: test-long
test-long: $(LIBRARY) models ## run the long tests: races, memory, exits, fuzzing (about 15 minutes)
	$(PY) -m pytest tests/long $(PYTEST_ARGS)
	SEMANTIC_TEST_LONG=1 tools/go.sh test -race -count=1 -run TestManyGoroutines ./native/libsemantic

.PHONY: soak
soak: $(LIBRARY) ## 256 callers while models come and go, candle's verbs, all calls mixed, fuzzing
	$(PY) -m tests.long.callers_soak --minutes $(or $(MINUTES),10)
	$(PY) -m tests.long.candle_soak --calls $(CALLS)
	$(PY) -m tests.long.soak --minutes $(or $(MINUTES),60)

# It needs Go 1.26, which an older Go fetches.
$(STATICCHECK): $(VENV_STAMP)
	GOBIN="$(CURDIR)/build/bin" GOTOOLCHAIN=auto "$$(tools/find_go.sh)" install \
		honnef.co/go/tools/cmd/staticcheck@v$(STATICCHECK_VERSION)
	mv build/bin/staticcheck $@

.PHONY: lint
lint: $(LIBRARY) $(STATICCHECK) ## check format, style and types of Python, Go and C
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	@# The sources under the names they are imported by.
	@mkdir -p build/types/libsemantic
	@ln -sfn ../../../engine ../../../ffi build/types/libsemantic/
	MYPYPATH=build/types:tools:bench $(PY) -m mypy --strict --explicit-package-bases \
		build/types/libsemantic $(PYTHON_PATHS)
	$(PY) $(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)
	files=$$($(GOFMT) -l go_example bench/go_peer); \
		[ -z "$$files" ] || { echo "error: not formatted, run make format:" $$files >&2; exit 1; }
	tools/go.sh vet ./...
	tools/go.sh with "$(CURDIR)/$(STATICCHECK)" ./...
	tools/go.sh with env CGO_ENABLED=0 go vet ./...
	tools/go.sh with env CGO_ENABLED=0 "$(CURDIR)/$(STATICCHECK)" ./...

.PHONY: format
format: $(VENV_STAMP) ## format Python, Go and C
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
	$(PY) $(VENV)/bin/clang-format -i $(C_FILES)
	$(GOFMT) -w go_example bench/go_peer

.PHONY: bench
bench: bench-programs ## measure speed and memory, compare with other libraries (45 minutes)
	$(PY) bench/bench.py $(BENCH_ARGS)
	$(PY) bench/concurrency.py
	$(PY) bench/loading.py
	$(PY) bench/together.py
	$(PY) bench/replacing.py
	$(PY) bench/adapters.py
	$(PY) bench/int8.py
	$(PY) bench/peers.py $(PEERS_ARGS)
	@# Last, since it fails where a call takes too long.
	$(PY) bench/candle.py

.PHONY: bench-quick
bench-quick: bench-programs ## compare MiniLM with other libraries, under load (5 minutes)
	$(PY) bench/peers.py --quick $(PEERS_ARGS)

.PHONY: bench-int8
bench-int8: $(LIBRARY) models ## compare int8 with fp32: time, memory, quality (4 minutes)
	$(PY) bench/int8.py $(INT8_ARGS)

# The other Go binding comes from the module proxy; without a network it is left out.
.PHONY: bench-programs
bench-programs: $(LIBRARY) models
	tools/go.sh build -buildvcs=false -o ../build/bin/load ./cmd/load
	rm -f build/bin/go_peer
	CGO_ENABLED=1 GOTOOLCHAIN=local "$$(tools/find_go.sh)" -C bench/go_peer build -buildvcs=false \
		-o ../../build/bin/go_peer . || echo "bench/go_peer is left out: Go's reason stands above"

.PHONY: setup-peers
setup-peers: $(VENV_STAMP) ## install what make bench compares with (torch, transformers; 6 GB)
	$(PY) -m venv build/peers
	build/peers/bin/python -m pip install --disable-pip-version-check -r bench/peers.txt

.PHONY: install
install: ## make a standalone tree in PREFIX (default /opt/libsemantic; PROVIDER=... as for setup)
	$(need_compiler)
	prefix=$$(realpath -m -- "$(PREFIX)"); \
		python=$$(tools/find_python.sh $(VENV)); \
		"$$python" tools/setup_env.py --installed $(provider_option) "$$prefix/env"; \
		"$$prefix/env/bin/python" build_ffi.py --output "$$prefix"; \
		echo "installed in $$prefix; pkg-config finds it with PKG_CONFIG_PATH=$$prefix/lib/pkgconfig"

.PHONY: clean
clean: ## delete build/ and all caches
	rm -rf build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
